//! A rank that is killed in mid-training is named by the others at once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use bonfire_comm::ProcessGroup;
use bonfire_tests::{Precision, RankOutput, Rule, Samples, Training, as_rank, run_ranks};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);
const MOST: Duration = Duration::from_secs(10);
const VICTIM: usize = 1;
/// Step in which the victim is killed, and one that nobody gets to.
const KILLED_IN: usize = 5;
const NEVER: usize = 10_000;
const GLOBAL_BATCH: usize = 48;
const SIGKILL: i32 = 9;

#[test]
fn survivors_name_the_killed_rank() {
    if as_rank(train_until_failure) {
        return;
    }
    let outputs = run_ranks(3, "survivors_name_the_killed_rank", &[], DEADLINE);
    assert_eq!(outputs[VICTIM].status.signal(), Some(SIGKILL));
    for output in outputs.iter().filter(|output| output.rank != VICTIM) {
        check_survivor(output);
    }
}

fn check_survivor(output: &RankOutput) {
    let (error, milliseconds): (String, u64) = output.result();
    assert!(error.contains("rank 1 died"), "rank {}: {error}", output.rank);
    assert!(Duration::from_millis(milliseconds) < MOST, "rank {}: {milliseconds} ms", output.rank);
}

/// Returns the error that ends the training, and how long the last step took in milliseconds.
fn train_until_failure(group: &ProcessGroup) -> (String, u64) {
    let device = Precision::F32.device();
    let mut training = Training::new(group, &device, Rule::Sgd, 1).unwrap();
    for step in 0..NEVER {
        if step == KILLED_IN && group.rank() == VICTIM {
            kill_this_process();
        }
        let start = Instant::now();
        let batch = Samples::synthetic(step * GLOBAL_BATCH..(step + 1) * GLOBAL_BATCH);
        if let Err(error) = training.step(&batch) {
            return (error.to_string(), start.elapsed().as_millis() as u64);
        }
    }
    panic!("training went on without rank {VICTIM}");
}

fn kill_this_process() {
    let id = std::process::id().to_string();
    Command::new("kill").args(["-KILL", &id]).status().unwrap();
}
