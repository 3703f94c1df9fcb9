//! The recorder and the analysis as a user meets them.

use std::panic::Location;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use tempfile::tempdir;

use super::*;
use crate::{CommError, DType, Operation, ProcessGroup, ReduceOp, local};

mod synthetic;

const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);

fn report(folder: &Path) -> (Report, String) {
    let report = analyze(folder).unwrap();
    let text = report.to_string();
    (report, text)
}

#[test]
fn the_last_2000_operations_are_kept() {
    let recorder = Arc::new(Recorder::new(3, 4));
    let group = recorder.register("world", 3, 4);
    let begin =
        || Record::begin(&recorder, group, Operation::Barrier, DType::U8, 0, Location::caller());
    let evicted = begin();
    for sequence in 0..2004 {
        let record = begin();
        record.started(sequence);
        record.finished(None);
    }
    evicted.started(7);
    evicted.finished(None);
    let dump = recorder.snapshot(Reason::Request);
    let ids: Vec<u64> = dump.entries.iter().map(|entry| entry.id).collect();
    assert_eq!(ids, (5..2005).collect::<Vec<_>>());
    assert_eq!(dump.evicted, 5);
    assert!(dump.entries.iter().all(|entry| entry.sequence == Some(entry.id - 1)));
    assert_eq!((dump.groups[0].entered, dump.groups[0].finished), (2004, 2004));
}

#[test]
fn an_entry_says_what_was_called_where_and_how_it_went() {
    let recorder = Arc::new(Recorder::new(1, 2));
    let group = recorder.register("world/grads#0", 1, 2);
    let site = Location::caller();
    let begin = || Record::begin(&recorder, group, SUM, DType::F32, 10, site);
    let first = label("bucket 3", begin);
    first.started(0);
    first.clone().finished(None);
    first.finished(Some(&CommError::NoToken));
    let second = begin();
    second.started(1);
    second.finished(Some(&CommError::NoToken));
    begin();
    let message = Operation::Send { to: 0 };
    let message = Record::begin(&recorder, group, message, DType::U8, 1, site);
    message.started(9);
    message.started(10);

    let dump = recorder.snapshot(Reason::Request);
    let states: Vec<State> = dump.entries.iter().map(|entry| entry.state).collect();
    assert_eq!(states, [State::Finished, State::Failed, State::Created, State::Started]);
    let first = &dump.entries[0];
    assert_eq!(first.group, "world/grads#0");
    assert_eq!((first.operation.as_str(), first.dtype.as_str()), ("all_reduce(sum)", "f32"));
    assert_eq!((first.count, first.bytes, first.sequence), (10, 40, Some(0)));
    assert_eq!(first.site, format!("{}:{}", file!(), site.line()));
    assert_eq!((first.label.as_deref(), &first.error), (Some("bucket 3"), &None));
    assert!(first.created <= first.started.unwrap() && first.started <= first.finished);
    assert!(dump.began <= first.created && first.finished.unwrap() <= dump.dumped);
    assert_eq!(dump.entries[1].error, Some(CommError::NoToken.to_string()));
    assert_eq!((dump.entries[2].started, dump.entries[2].sequence), (None, None));
    assert_eq!(dump.entries[3].sequence, Some(9));
    // The message does not count.
    assert_eq!((dump.groups[0].entered, dump.groups[0].finished), (2, 1));

    let folder = tempdir().unwrap();
    let path = super::dump::write(&dump, folder.path()).unwrap();
    assert_eq!(Dump::read(&path).unwrap(), dump);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the file aside is gone");
}

#[test]
fn groups_record_blocking_and_started_calls_and_a_healthy_world_has_no_findings() {
    let folder = tempdir().unwrap();
    let together = Barrier::new(3);
    local::spawn(3, |group| {
        let buckets = group.duplicate("buckets").unwrap();
        let start = || buckets.start_all_reduce(vec![1f64; 5], ReduceOp::Sum).unwrap();
        label("bucket 0", start).wait().unwrap();
        if group.rank() == 0 {
            group.send(&[1u8], 1).unwrap();
        } else if group.rank() == 1 {
            group.recv(&mut [0u8], 0).unwrap();
        }
        group.barrier().unwrap();
        together.wait();
        let path = group.flight_recorder().dump(folder.path()).unwrap();
        let dump = Dump::read(&path).unwrap();
        assert_eq!((dump.rank, dump.world_size, dump.pid), (group.rank(), 3, std::process::id()));
        let entry = dump.entries.iter().find(|entry| entry.label.is_some()).unwrap();
        assert_eq!((entry.group.as_str(), entry.state), ("world/buckets#0", State::Finished));
        assert!(entry.site.starts_with(file!()), "{}", entry.site);
        assert_eq!(dump.groups[1].finished, 1);
    });
    let (report, text) = report(folder.path());
    assert_eq!(report.findings, []);
    assert!(text.starts_with("nothing stands out"), "{text}");
}

#[test]
fn a_mismatch_leaves_dumps_that_name_both_operations() {
    let folder = tempdir().unwrap();
    local::spawn(3, |group| {
        group.flight_recorder().dump_on_failure(folder.path());
        group.barrier().unwrap();
        let mut data = [1f32; 400];
        let result = if group.rank() == 1 {
            group.broadcast(&mut data, 1)
        } else {
            group.all_reduce(&mut data, ReduceOp::Sum)
        };
        // The root of a broadcast may be through before anybody has seen its call.
        result.and_then(|()| group.barrier()).unwrap_err();
    });
    let (report, text) = report(folder.path());
    assert!(report.missing.is_empty());
    let Finding::Mismatch(mismatch) = &report.findings[0] else { panic!("{text}") };
    assert_eq!(mismatch.sequence, 1);
    // Whoever hears of the failure before it enters has no side.
    let [side, other] = mismatch.sides.as_slice() else { panic!("{text}") };
    let (broadcast, reduce) = if side.ranks == [1] { (side, other) } else { (other, side) };
    assert_eq!(broadcast.ranks, [1]);
    assert!(reduce.ranks.iter().all(|rank| [0, 2].contains(rank)), "{text}");
    assert!(text.contains("rank 1 called broadcast(root 1) of 400 f32 [sequence 1] "), "{text}");
    let others = " called all_reduce(sum) of 400 f32 [sequence 1] (called at ";
    assert!(text.contains(others), "{text}");
    assert!(report.dumps.iter().all(|dump| dump.reason != Reason::Request));
    // The root fails in its broadcast already, unless it was through.
    let first = text.contains("failed, first in ") || text.contains("rank 1 failed in barrier ");
    assert!(first, "{text}");
}

/// Rank 2 does not enter the second `all_reduce` of group `grads` before the others give up.
fn a_rank_that_does_not_come(folder: &Path, comes_late: bool) {
    let given_up = Barrier::new(3);
    local::spawn_with_timeout(3, Duration::from_millis(400), |group| {
        group.flight_recorder().dump_on_failure(folder);
        let grads = group.duplicate("grads").unwrap();
        let reduce = |group: &ProcessGroup| group.all_reduce(&mut [1i64; 7], ReduceOp::Max);
        reduce(&grads).unwrap();
        if group.rank() != 2 {
            reduce(&grads).unwrap_err();
        }
        given_up.wait();
        if group.rank() == 2 && comes_late {
            reduce(&grads).unwrap_err();
        }
    });
}

#[test]
fn a_rank_that_never_enters_is_behind() {
    let folder = tempdir().unwrap();
    a_rank_that_does_not_come(folder.path(), true);
    let (report, text) = report(folder.path());
    let Finding::Standstill(standstill) = &report.findings[0] else { panic!("{text}") };
    assert_eq!((standstill.group.as_str(), standstill.sequence), ("world/grads#0", 1));
    let behind: Vec<usize> = standstill.behind.iter().map(|behind| behind.rank).collect();
    let waiting: Vec<usize> = standstill.waiting.iter().map(|waiting| waiting.rank).collect();
    assert_eq!((behind, waiting), (vec![2], vec![0, 1]));
    assert!(standstill.waiting.iter().any(|waiting| waiting.waited > 400_000_000));
    assert!(standstill.behind[0].called.as_ref().unwrap().late.unwrap() > 400_000_000);
    let beginning = "rank 2 is behind: it has finished 1 of the collectives of group \
                     \"world/grads#0\", the others, ranks 0 and 1, waited in all_reduce(max) of 7 \
                     i64 [sequence 1] (called at ";
    assert!(text.starts_with(beginning), "{text}");
    assert!(text.contains("; rank 2 called it (called at "), "{text}");
    assert!(text.contains("after the first of them, when the session had failed; "), "{text}");
    assert!(text.contains("the last call that rank 2 finished is all_reduce(max)"), "{text}");
    assert!(text.contains("rank(s) [2] have not entered it"), "{text}");
}

#[test]
fn a_rank_without_a_dump_is_named_and_suspected() {
    let folder = tempdir().unwrap();
    a_rank_that_does_not_come(folder.path(), false);
    let (report, text) = report(folder.path());
    assert_eq!(report.missing, [2]);
    assert!(text.starts_with("rank 2 left no dump: "), "{text}");
    let Finding::Standstill(standstill) = &report.findings[0] else { panic!("{text}") };
    assert_eq!((standstill.sequence, standstill.waiting.len()), (1, 2));
    assert_eq!(standstill.absence.as_deref(), Some("rank 2 left no dump"));
    let expected = "group \"world/grads#0\" stands still: ranks 0 and 1 waited in all_reduce(max)";
    assert!(text.contains(expected), "{text}");
    let expected = "; rank 2 left no dump, so that it is unknown who has entered it\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn only_the_first_failure_dumps_and_a_dump_that_fails_harms_nobody() {
    let folder = tempdir().unwrap();
    let recorder = Arc::new(Recorder::new(0, 2));
    let group = recorder.register("world", 0, 2);
    let fail = |error: &CommError| {
        let record = Record::begin(&recorder, group, SUM, DType::F32, 1, Location::caller());
        record.finished(Some(error));
    };
    fail(&CommError::NoToken);
    let first = CommError::Internal { detail: "first".into() };
    recorder.dump_on_failure(folder.path().join("made/on/the/way"));
    fail(&first);
    fail(&CommError::NoToken);
    let path = recorder.folder().unwrap().join("flight-rank-0.json");
    assert_eq!(Dump::read(&path).unwrap().reason, Reason::Failure(first.to_string()));

    let recorder = Arc::new(Recorder::new(0, 2));
    let file = folder.path().join("a file");
    std::fs::write(&file, "").unwrap();
    recorder.dump_on_failure(&file);
    let group = recorder.register("world", 0, 2);
    let record = Record::begin(&recorder, group, SUM, DType::F32, 1, Location::caller());
    record.finished(Some(&first));
    dump_on_signal(&recorder, &file);
    let error = recorder.dump(&file).unwrap_err().to_string();
    assert!(error.starts_with("cannot write ") && error.contains("a file"), "{error}");
}
