//! Output that nobody reads, and output that cannot be written.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::fs::File;
use std::process::Stdio;
use support::{Ended, Train, bonfire, digits};

/// Trains with standard output or standard error a pipe whose reader is gone.
fn check_closed(ranks: usize, stderr: bool) {
    let mut train = digits().ranks(ranks).set(&["train.max_epochs=2", "log.interval_s=0.01"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (closed, other) = (Stdio::from(writer), Stdio::null());
    let command = train.command();
    if stderr {
        command.stdout(other).stderr(closed);
    } else {
        command.stdout(closed).stderr(other);
    }
    let ended = train.start_with_own_output().wait();
    assert!(ended.status.success(), "{ranks} rank(s): {}", ended.status);
    assert_eq!(ended.summary()["epochs"].as_u64(), Some(2));
    assert!(ended.run_folder().join("model.safetensors").exists());
}

#[test]
fn a_closed_standard_output_loses_nothing() {
    check_closed(1, false);
    check_closed(2, false);
}

#[test]
fn a_closed_standard_error_loses_nothing() {
    check_closed(1, true);
    check_closed(2, true);
}

#[test]
fn progress_is_lines_without_a_terminal() {
    let ended = digits().ranks(2).set(&["train.max_epochs=3", "log.interval_s=0.01"]).succeed();
    let steps = ended.stderr.lines().filter(|line| line.contains("images/s  step "));
    assert!(steps.count() > 2, "{}", ended.log());
}

/// Only a reader that has left is no failure: a full disk is one, whatever the command.
#[test]
fn what_cannot_be_written_is_an_error() {
    let trained = digits().set(&["train.max_epochs=1", "schedule.warmup_epochs=0"]).succeed();
    let run = trained.run_folder();
    let (run, picture) = (run.to_str().unwrap(), "examples/infer/seven.png");
    let commands: [&[&str]; 8] = [
        &["predict", run, picture],
        &["evaluate", run, "configs/digits.toml"],
        &["data", "info", "data/digits"],
        &["train", "configs/digits.toml", "--dry-run"],
        &["checkpoint", "inspect", run],
        &["checkpoint", "verify", run],
        &["checkpoint", "prune", run, "--keep-last", "1", "--dry-run"],
        &["bench", "collectives", "--ops", "broadcast", "--sizes", "4K", "--iterations", "1"],
    ];
    for command in commands {
        let ended = ended_with(bonfire(command), full());
        assert_eq!(ended.status.code(), Some(1), "{command:?}: {}", ended.log());
        ended.says_once(&["writing to \"standard output\" failed", "No space left"]);

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = ended_with(bonfire(command), writer.into());
        assert!(ended.status.success(), "{command:?}: {}", ended.log());
    }
    // The table at the end of a run: the run is whole, and its loss is told.
    let ended =
        ended_with(digits().set(&["train.max_epochs=1", "schedule.warmup_epochs=0"]), full());
    assert_eq!(ended.status.code(), Some(1), "{}", ended.log());
    ended.says_once(&["writing to \"standard output\" failed"]);
    assert!(ended.run_folder().join("summary.json").exists());
}

/// A disk without room.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn ended_with(mut call: Train, stdout: Stdio) -> Ended {
    let errors = File::create(call.folder.path().join("stderr")).unwrap();
    call.command().stdout(stdout).stderr(errors);
    call.start_with_own_output().wait()
}
