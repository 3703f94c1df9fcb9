//! A run whose output nobody reads.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::process::Stdio;
use support::digits;

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
