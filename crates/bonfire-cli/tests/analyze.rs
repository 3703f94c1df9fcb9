//! Flight records of runs, and what `bonfire analyze` says of them.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use nix::sys::signal::Signal;
use std::path::Path;
use std::time::Duration;
use support::{Ended, Running, bonfire, digits};

/// A run of three ranks that would go on for minutes, in mid-epoch.
fn training() -> Running {
    let overrides = [
        "train.max_epochs=10000",
        "data.batch_size=3",
        "train.log_every_n_steps=1",
        "distributed.timeout_s=3",
    ];
    let mut running = digits().ranks(3).set(&overrides).start();
    running.until_training();
    running
}

fn analyze(folder: &Path) -> Ended {
    bonfire(&["analyze", &folder.display().to_string()]).succeed()
}

fn dump_of(folder: &Path, rank: usize) -> bool {
    folder.join(format!("flight-rank-{rank}.json")).exists()
}

#[test]
fn a_stopped_rank_is_named_with_the_collective_that_misses_it() {
    let mut running = training();
    running.signal_rank(1, Signal::SIGSTOP);
    let folder = running.run_folder().join("flight");
    running.until("dumps of the other ranks", |_| dump_of(&folder, 0) && dump_of(&folder, 2));
    // Before it goes on: it may then come through the collective and leave a dump that says so.
    let text = analyze(&folder).log();
    assert!(text.contains("rank 1 left no dump"), "{text}");
    assert!(text.contains("rank(s) [1] do not answer"), "{text}");
    running.signal_rank(1, Signal::SIGCONT);
    running.wait().says("bonfire analyze ");
}

#[test]
fn sigusr2_dumps_every_rank_and_the_run_goes_on() {
    let mut running = training();
    running.signal(Signal::SIGUSR2);
    let folder = running.run_folder().join("flight");
    running.until("dumps of all ranks", |_| (0..3).all(|rank| dump_of(&folder, rank)));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(running.processes().len(), 4);
    let report = analyze(&folder);
    assert!(report.log().contains("world"), "{}", report.log());
    let json = bonfire(&["analyze", "--json", &folder.display().to_string()]).succeed();
    assert!(json.log().contains("\"findings\""), "{}", json.log());
    running.signal(Signal::SIGKILL);
    running.wait();
}

#[test]
fn a_folder_without_dumps_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let ended = bonfire(&["analyze", &folder.path().display().to_string()]).fail();
    ended.says_once(&[&folder.path().display().to_string()]);
}
