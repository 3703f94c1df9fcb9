//! Dumps made by hand, for what is hard to bring about.

use super::*;
use crate::flight::dump::{file_name, write};

const MS: u64 = 1_000_000;
const BEGAN: u64 = 1_700_000_000_000_000_000;

/// A dump 20 s after the beginning, of a rank that is in group `world` alone.
fn dump(rank: usize, world_size: usize) -> Dump {
    let identity = "world".to_owned();
    Dump {
        version: VERSION,
        run_id: "synthetic".into(),
        restart: 0,
        rank,
        world_size,
        host: "node".into(),
        pid: 100 + rank as u32,
        began: BEGAN,
        dumped: BEGAN + 20_000 * MS,
        reason: Reason::Request,
        evicted: 0,
        groups: vec![GroupProgress { identity, rank, world_size, entered: 0, finished: 0 }],
        entries: Vec::new(),
    }
}

impl Dump {
    /// Adds a call, `created` so many nanoseconds after the beginning; it takes 1 ms if it
    /// finishes.
    fn call(&mut self, operation: &str, count: usize, created: u64, state: State) -> &mut Entry {
        let id = self.entries.len() as u64;
        let created = BEGAN + created;
        let is_message = operation.starts_with("send") || operation.starts_with("recv");
        let progress = &mut self.groups[0];
        let sequence = (state != State::Created).then_some(progress.entered);
        if sequence.is_some() && !is_message {
            progress.entered += 1;
            progress.finished += u64::from(state == State::Finished);
        }
        self.entries.push(Entry {
            id,
            group: "world".into(),
            sequence,
            operation: operation.into(),
            dtype: "f32".into(),
            count,
            bytes: 4 * count,
            site: format!("train.rs:{}", 10 + id),
            label: None,
            state,
            created,
            started: sequence.map(|_| created),
            finished: matches!(state, State::Finished | State::Failed).then_some(created + MS),
            on_device: None,
            error: (state == State::Failed).then(|| "it broke".into()),
        });
        self.entries.last_mut().unwrap()
    }

    /// Adds an `all_reduce` that has finished.
    fn reduce(&mut self, created: u64) -> &mut Entry {
        self.call("all_reduce(sum)", 1000, created, State::Finished)
    }
}

fn analyzed(dumps: &[Dump]) -> (Report, String) {
    let folder = tempdir().unwrap();
    for dump in dumps {
        write(dump, folder.path()).unwrap();
    }
    report(folder.path())
}

#[test]
fn a_rank_that_waits_elsewhere_is_behind() {
    let mut dumps: Vec<Dump> = (0..4).map(|rank| dump(rank, 4)).collect();
    for dump in &mut dumps {
        dump.reduce(1000 * MS);
    }
    dumps[2].call("recv(from 3)", 5, 1500 * MS, State::Started).label = Some("stage 1".into());
    for rank in [0, 1, 3] {
        dumps[rank].call("all_reduce(sum)", 1000, 7655 * MS, State::Started);
    }
    let (report, text) = analyzed(&dumps);
    let lines: Vec<&str> = text.lines().collect();
    let expected = "rank 2 is behind: it has finished 1 of the collectives of group \"world\", the \
                    others, ranks 0, 1 and 3, wait in all_reduce(sum) of 1000 f32 [sequence 1] \
                    (called at train.rs:11) since 12.3 s (2023-11-14 22:13:27.655 UTC); rank 2 has \
                    been in recv(from 3) of 5 f32 [message 1] of group \"world\" (called at \
                    train.rs:11 for \"stage 1\") for 18.5 s; the last call that rank 2 finished is \
                    all_reduce(sum) of 1000 f32 [sequence 0] of group \"world\" (called at \
                    train.rs:10), 19.0 s before its dump";
    assert_eq!(lines[0], expected);
    assert!(lines[1].starts_with("rank 2 waits in recv(from 3) of 5 f32"), "{text}");
    let row = "     2         2        1         1  all_reduce(sum) of 1000 f32 [sequence 0]  \
               finished 19.0 s before the dump";
    assert!(lines.contains(&row), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["findings"][0]["kind"], "standstill");
    assert_eq!(json["findings"][0]["behind"][0]["rank"], 2);
    assert_eq!(json["findings"][1]["kind"], "open_message");
}

#[test]
fn a_collective_that_all_have_entered_names_no_rank() {
    let mut dumps = [dump(0, 2), dump(1, 2)];
    dumps[0].call("barrier", 0, 0, State::Started);
    dumps[1].call("barrier", 0, 0, State::Started);
    let (_, text) = analyzed(&dumps);
    let expected = "group \"world\" stands still: ranks 0 and 1 wait in barrier [sequence 0] \
                    (called at train.rs:10) since 20.0 s (2023-11-14 22:13:20.000 UTC); all ranks \
                    have entered it: the network, a device or a rank inside it is slow\n";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_dump_from_before_the_wait_accuses_nobody() {
    let mut dumps = [dump(0, 2), dump(1, 2)];
    dumps[0].call("broadcast(root 0)", 8, 5000 * MS, State::Started);
    dumps[1].dumped = BEGAN + 3000 * MS;
    let (report, text) = analyzed(&dumps);
    let Finding::Standstill(standstill) = &report.findings[0] else { panic!("{text}") };
    assert_eq!((standstill.behind.len(), &standstill.outdated), (0, &vec![1]));
    assert!(text.contains("the dump of rank 1 is too old to tell; dump all ranks at"), "{text}");
}

#[test]
fn a_short_wait_is_called_ordinary() {
    let mut dumps = [dump(0, 2), dump(1, 2)];
    dumps[0].call("barrier", 0, 19_990 * MS, State::Started);
    let (_, text) = analyzed(&dumps);
    assert!(text.contains("rank 1 is behind"), "{text}");
    assert!(text.contains("; so short a wait may be ordinary progress\n"), "{text}");
}

#[test]
fn the_parts_of_gather_and_scatter_are_no_mismatch() {
    let mut dumps = [dump(0, 2), dump(1, 2)];
    for (rank, counts) in [[20, 10], [10, 20]].into_iter().enumerate() {
        dumps[rank].call("gather(root 0)", counts[0], 0, State::Finished);
        dumps[rank].call("scatter(root 1)", counts[1], 9 * MS, State::Finished);
    }
    assert_eq!(analyzed(&dumps).0.findings, []);
    dumps[1].entries[1].count = 18;
    let (report, text) = analyzed(&dumps);
    assert!(matches!(report.findings[..], [Finding::Mismatch(_)]), "{text}");
    assert!(text.contains("part at sequence 1: rank 0 called scatter(root 1)"), "{text}");
}

#[test]
fn the_straggler_stands_out_by_its_median() {
    let lateness = |latest: u64, next: u64| {
        let mut dumps = [dump(0, 3), dump(1, 3), dump(2, 3)];
        for step in 0..10 {
            dumps[0].reduce(step * 100 * MS);
            // An outlier of another rank must not decide.
            let outlier = if step == 3 { 90 * MS } else { 0 };
            dumps[1].reduce(step * 100 * MS + next + outlier);
            dumps[2].reduce(step * 100 * MS + latest);
        }
        dumps
    };
    let (report, text) = analyzed(&lateness(12_500_000, 300_000));
    let expected = "rank 2 comes late: in 10 collectives of group \"world\" it called 12.5 ms after \
                    the first rank (median), the next latest rank 300.0 us\n";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(report.findings.len(), 1);
    for (latest, next) in [(12 * MS, 5 * MS), (900_000, 0)] {
        assert_eq!(analyzed(&lateness(latest, next)).0.findings, []);
    }
    let mut dumps = lateness(12 * MS, 0);
    dumps[1].host = "other".into();
    assert!(analyzed(&dumps).1.contains("several machines, whose clocks may differ"));
}

#[test]
fn evicted_entries_leave_their_counts() {
    let mut dumps = [dump(0, 2), dump(1, 2)];
    dumps[0].reduce(10_000 * MS);
    for (dump, count) in dumps.iter_mut().zip([9000, 8000]) {
        (dump.groups[0].entered, dump.groups[0].finished) = (count, count);
    }
    let (_, text) = analyzed(&dumps);
    let expected = "rank 1 is behind: it has finished 8000 of the collectives of group \"world\", \
                    rank 0 is through with collective 8000; rank 1 has finished no call\n";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn dumps_of_a_healthy_world_at_different_times_accuse_nobody() {
    let mut dumps = [dump(0, 2), dump(1, 2)];
    dumps[1].dumped -= 5000 * MS;
    for step in 0..19 {
        for dump in &mut dumps {
            if dump.dumped - BEGAN > step * 1000 * MS {
                dump.reduce(step * 1000 * MS);
            }
        }
    }
    let (report, text) = analyzed(&dumps);
    assert_eq!(report.findings, [], "{text}");
    // A wait after the older dump is told still.
    dumps[0].call("barrier", 0, 19_000 * MS, State::Started);
    let (_, text) = analyzed(&dumps);
    assert!(text.starts_with("group \"world\" stands still: rank 0 waits in barrier"), "{text}");
}

#[test]
fn the_same_error_of_several_ranks_is_told_once() {
    let mut dumps = [dump(0, 3), dump(1, 3), dump(2, 3)];
    for dump in &mut dumps {
        dump.call("all_gather", 6, 0, State::Failed);
    }
    dumps[1].entries[0].error = Some("rank 1 burnt".into());
    dumps[2].entries[0].finished = Some(BEGAN);
    let (report, text) = analyzed(&dumps);
    dumps[0].entries[0].error = Some("rank 2 failed: it broke".into());
    let expected = "ranks 0 and 2 failed, first in all_gather of 6 f32 [sequence 0] of group \
                    \"world\" (called at train.rs:10) at 2023-11-14 22:13:20.000 UTC: it broke\n";
    assert!(text.contains(expected), "{text}");
    let failures = report.findings.iter().filter(|finding| matches!(finding, Finding::Failure(_)));
    assert_eq!(failures.count(), 2);
}

#[test]
fn a_group_that_not_all_ranks_have_made_says_so() {
    let mut dumps = [dump(0, 3), dump(1, 3)];
    let progress = dumps[0].groups[0].clone();
    let pair = GroupProgress { identity: "world/pair#0".into(), world_size: 2, ..progress.clone() };
    let all = GroupProgress { identity: "world/all#1".into(), ..progress };
    dumps[0].groups.extend([pair, all]);
    let absences: Vec<_> =
        analyzed(&dumps).0.groups.into_iter().map(|group| group.absence.unwrap()).collect();
    assert_eq!(
        absences,
        [
            "rank 2 left no dump",
            "1 of its 2 ranks left no dump or did not make it",
            "rank 2 left no dump, rank 1 has not made this group",
        ]
    );
}

#[test]
fn what_is_no_dump_is_a_clear_error() {
    let folder = tempdir().unwrap();
    let path = |rank| folder.path().join(file_name(rank));
    let error = || analyze(folder.path()).unwrap_err().to_string();
    std::fs::write(folder.path().join("flight-rank-x.json"), "no name of a dump").unwrap();
    assert!(error().starts_with("no dump flight-rank-<rank>.json in "), "{}", error());

    write(&dump(0, 2), folder.path()).unwrap();
    std::fs::write(path(1), "{\"version\": 1, garbage").unwrap();
    let expected = format!("{} is no dump of the flight recorder: ", path(1).display());
    assert!(error().starts_with(&expected), "{}", error());
    std::fs::write(path(1), "{\"version\": 1}").unwrap();
    assert!(error().contains("missing field `run_id`"), "{}", error());
    std::fs::write(path(1), "{\"version\": 2, \"new\": true}").unwrap();
    assert!(error().contains("has format version 2, this program reads version 1"), "{}", error());
    std::fs::copy(path(0), path(1)).unwrap();
    assert!(error().contains("it is the dump of rank 0, renamed"), "{}", error());
    let error = analyze(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read the folder "), "{error}");
}

#[test]
fn dumps_of_different_runs_are_refused() {
    let refused = |change: fn(&mut Dump), detail: &str| {
        let folder = tempdir().unwrap();
        let mut other = dump(1, 2);
        change(&mut other);
        for dump in [dump(0, 2), other] {
            write(&dump, folder.path()).unwrap();
        }
        let error = analyze(folder.path()).unwrap_err().to_string();
        assert!(error.contains("flight-rank-0.json and ") && error.contains(detail), "{error}");
    };
    refused(|dump| dump.world_size = 3, "are of different runs: world size 2 and 3; remove");
    refused(|dump| dump.run_id = "other".into(), "run synthetic and other");
    refused(|dump| dump.restart = 1, "restart 0 and 1");
    refused(
        |dump| dump.dumped = BEGAN - 100_000 * MS,
        "rank 1 dumped at 2023-11-14 22:11:40.000 UTC, before rank 0 began at 2023-11-14 22:13:20",
    );
}
