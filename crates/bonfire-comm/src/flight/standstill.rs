//! The collective in which a group stands still: who waits, who has not come, where those are.

use std::collections::BTreeSet;

use super::merge::{GroupView, Member};
use super::{BehindRank, Entry, LateCall, RecordedCall, Standstill, State, TimedCall, WaitingRank};

/// Finds the first collective of `group` that some rank is in and another has not entered or not
/// finished.
pub(super) fn find(group: &GroupView<'_>) -> Option<Standstill> {
    let most = group.members.iter().map(|member| member.progress.entered).max()?;
    let of_member = |member: &Member<'_>| {
        let open = first_open(member).map(|(sequence, _)| sequence);
        let not_entered = Some(member.progress.entered).filter(|&entered| entered < most);
        [open, not_entered].into_iter().flatten()
    };
    let candidates: BTreeSet<u64> = group.members.iter().flat_map(of_member).collect();
    let found = |sequence| {
        let standstill = at(group, sequence);
        (!standstill.waiting.is_empty() || !standstill.behind.is_empty()).then_some(standstill)
    };
    if group.size > 1 { candidates.into_iter().find_map(found) } else { None }
}

/// Says who waits in collective `sequence`, who has finished it and who has not come.
fn at(group: &GroupView<'_>, sequence: u64) -> Standstill {
    let entries = || group.members.iter().filter_map(|member| member.collectives.get(&sequence));
    let first = entries().copied().min_by_key(|entry| entry.started);
    let since = first.and_then(|entry| entry.started);
    let mut standstill = Standstill {
        group: group.identity.to_owned(),
        sequence,
        call: first.map(RecordedCall::from),
        since,
        lasted: None,
        waiting: Vec::new(),
        finished: Vec::new(),
        behind: Vec::new(),
        outdated: Vec::new(),
        absence: group.absence.clone(),
    };
    for member in &group.members {
        let (rank, dumped) = (member.rank(), member.dump.dumped);
        let open = first_open(member).filter(|(open, _)| *open == sequence);
        if let Some((_, entry)) = open {
            standstill.waiting.push(waiting(member, entry));
        } else if member.progress.entered > sequence {
            standstill.finished.push(rank);
            continue;
        } else if group.members.iter().any(|other| had_come(other, sequence, dumped)) {
            standstill.behind.push(behind(member, since));
        } else {
            standstill.outdated.push(rank);
            continue;
        }
        let lasted = since.map(|since| dumped.saturating_sub(since));
        standstill.lasted = standstill.lasted.max(lasted);
    }
    standstill
}

/// Whether a rank was in a collective at `time` and never got through, or was through with it by
/// then. A rank that got through later proves nothing against one that dumped at `time`.
fn had_come(member: &Member<'_>, sequence: u64, time: u64) -> bool {
    if member.progress.entered <= sequence {
        return false;
    }
    let came = match member.collectives.get(&sequence) {
        Some(entry) if entry.state == State::Finished => entry.finished,
        Some(entry) => entry.started,
        // Its entry is gone: it was through with it before its oldest entry that is left.
        None => member.dump.entries.first().map(|oldest| oldest.created),
    };
    came.is_some_and(|came| came <= time)
}

/// Returns the first collective that a rank has entered and not finished. The engine runs a
/// group's collectives in order: what lies before a finished one has ended too.
fn first_open<'a>(member: &Member<'a>) -> Option<(u64, &'a Entry)> {
    let is_finished = |entry: &Entry| entry.state == State::Finished;
    let after = |(sequence, _): &(&u64, &&Entry)| **sequence >= member.progress.finished;
    member
        .collectives
        .iter()
        .filter(after)
        .find(|(_, entry)| !is_finished(entry))
        .map(|(sequence, entry)| (*sequence, *entry))
}

fn waiting(member: &Member<'_>, entry: &Entry) -> WaitingRank {
    let since = entry.started.unwrap_or(entry.created);
    WaitingRank {
        rank: member.rank(),
        site: entry.site.clone(),
        since,
        waited: entry.finished.unwrap_or(member.dump.dumped).saturating_sub(since),
        failed: entry.state == State::Failed,
    }
}

/// Says where a rank is that others wait for `since` then.
fn behind(member: &Member<'_>, since: Option<u64>) -> BehindRank {
    let dump = member.dump;
    let called = member.waiting.first().copied();
    let is_open = |entry: &&Entry| {
        matches!(entry.state, State::Created | State::Started)
            && called.is_none_or(|called| called.id != entry.id)
    };
    let open = dump.entries.iter().find(is_open);
    let is_finished = |entry: &&Entry| entry.state == State::Finished;
    let last = dump.entries.iter().filter(is_finished).max_by_key(|entry| entry.finished);
    let timed = |entry| TimedCall::new(entry, dump.dumped);
    BehindRank {
        rank: member.rank(),
        entered: member.progress.entered,
        finished: member.progress.finished,
        called: called.map(|entry| LateCall {
            call: RecordedCall::from(entry),
            late: since.and_then(|since| entry.created.checked_sub(since)),
            failed: entry.state == State::Failed,
        }),
        open: open.map(timed),
        last: last.map(timed),
    }
}
