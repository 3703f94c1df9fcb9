//! From the dumps of all ranks to what went wrong.

use std::path::Path;

use super::merge::{AnalyzeError, GroupView, Member, World};
use super::{
    Dump, DumpSummary, Entry, Failure, Finding, GroupSummary, OpenMessage, RecordedCall, Report,
    Row, State, TimedCall, mismatch, standstill, straggler,
};

/// Merges the dumps of all ranks in `folder` and says which rank is behind, in which collective,
/// since when; which ranks called different collectives; what failed; and who comes late.
///
/// # Errors
/// When there is no dump, a file is no dump, or the dumps are of different runs.
pub fn analyze(folder: &Path) -> Result<Report, AnalyzeError> {
    let world = World::read(folder)?;
    let groups = world.groups();
    let (run_id, restart) = world
        .dumps
        .first()
        .map_or_else(Default::default, |dump| (dump.run_id.clone(), dump.restart));
    Ok(Report {
        run_id,
        restart,
        world_size: world.size(),
        dumps: world.dumps.iter().map(summary).collect(),
        missing: world.missing(),
        findings: findings(&world, &groups),
        groups: groups.iter().map(group_summary).collect(),
    })
}

/// Returns what stands out, causes before consequences: a mismatch explains why its group stands
/// still, a group that stands still explains the failures.
fn findings(world: &World, groups: &[GroupView<'_>]) -> Vec<Finding> {
    let mismatches: Vec<_> = groups.iter().filter_map(mismatch::find).collect();
    let is_explained = |group: &str, sequence: u64| {
        mismatches.iter().any(|found| found.group == group && found.sequence <= sequence)
    };
    let mut standstills: Vec<_> = groups.iter().filter_map(standstill::find).collect();
    standstills.retain(|found| !is_explained(&found.group, found.sequence));
    // The longest wait first: the other groups' may follow from it.
    standstills.sort_by_key(|found| found.since.unwrap_or(0));
    let messages = groups.iter().flat_map(open_messages).map(Finding::OpenMessage);
    let mut findings: Vec<Finding> = mismatches.into_iter().map(Finding::Mismatch).collect();
    findings.extend(standstills.into_iter().map(Finding::Standstill));
    findings.extend(messages);
    findings.extend(failures(&world.dumps).into_iter().map(Finding::Failure));
    findings.extend(groups.iter().filter_map(straggler::find).map(Finding::Straggler));
    findings
}

/// Returns the messages that had begun and not ended, which have no place among collectives.
fn open_messages(group: &GroupView<'_>) -> Vec<OpenMessage> {
    let of_member = |member: &Member<'_>| {
        let (rank, dumped) = (member.rank(), member.dump.dumped);
        let open = |entry: &&&Entry| matches!(entry.state, State::Created | State::Started);
        let message = |entry: &&Entry| OpenMessage {
            rank,
            call: RecordedCall::from(*entry),
            since: entry.created,
            waited: dumped.saturating_sub(entry.created),
        };
        member.messages.iter().filter(open).map(message).collect::<Vec<_>>()
    };
    group.members.iter().flat_map(of_member).collect()
}

/// Returns the first failure of each rank. Ranks that tell the same error, or that one told them,
/// stand together.
fn failures(dumps: &[Dump]) -> Vec<Failure> {
    let is_failed = |entry: &&Entry| entry.state == State::Failed;
    let first_of = |dump: &Dump| -> Option<Failure> {
        let entry = dump.entries.iter().filter(is_failed).min_by_key(|entry| entry.finished)?;
        Some(Failure {
            ranks: vec![dump.rank],
            call: RecordedCall::from(entry),
            at: entry.finished.unwrap_or(entry.created),
            error: entry.error.clone().unwrap_or_default(),
        })
    };
    let mut firsts: Vec<Failure> = dumps.iter().filter_map(first_of).collect();
    // An error told on is longer: "rank 0 failed: ...".
    firsts.sort_by_key(|failure| (failure.error.len(), failure.at));
    let mut failures: Vec<Failure> = Vec::new();
    for failure in firsts {
        let is_origin = |other: &&mut Failure| failure.error.ends_with(&other.error);
        match failures.iter_mut().find(is_origin) {
            Some(origin) => origin.ranks.extend(failure.ranks),
            None => failures.push(failure),
        }
    }
    failures.iter_mut().for_each(|failure| failure.ranks.sort_unstable());
    failures.sort_by_key(|failure| failure.at);
    failures
}

fn summary(dump: &Dump) -> DumpSummary {
    DumpSummary {
        rank: dump.rank,
        host: dump.host.clone(),
        pid: dump.pid,
        dumped: dump.dumped,
        reason: dump.reason.clone(),
        evicted: dump.evicted,
    }
}

fn group_summary(group: &GroupView<'_>) -> GroupSummary {
    GroupSummary {
        group: group.identity.to_owned(),
        size: group.size,
        rows: group.members.iter().map(row).collect(),
        absence: group.absence.clone(),
    }
}

fn row(member: &Member<'_>) -> Row {
    let last = member.collectives.values().last();
    Row {
        rank: member.rank(),
        rank_in_group: member.progress.rank,
        entered: member.progress.entered,
        finished: member.progress.finished,
        last: last.map(|entry| TimedCall::new(entry, member.dump.dumped)),
    }
}
