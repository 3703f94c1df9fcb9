//! Processes that die in mid-epoch.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use support::{Running, SOON, digits};

/// A run of three ranks that would go on for minutes, in mid-epoch.
fn training() -> Running {
    let overrides = ["train.max_epochs=10000", "data.batch_size=3", "train.log_every_n_steps=1"];
    let mut running = digits().ranks(3).set(&overrides).start();
    running.until_training();
    running
}

fn check_killed(rank: usize) {
    let running = training();
    running.signal_rank(rank, Signal::SIGKILL);
    let start = Instant::now();
    let ended = running.wait();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(ended.status.code(), Some(137), "{}", ended.log());
    ended.says_once(&[&format!("error: rank {rank} was killed by signal 9 (SIGKILL)")]);
    for other in (1..3).filter(|other| *other != rank) {
        ended.says_once(&[&format!("[rank {other}] error: rank {rank} died")]);
    }
    if rank != 0 {
        ended.says(&format!("error: rank {rank} died"));
    }
}

#[test]
fn the_others_name_a_killed_rank() {
    check_killed(1);
}

#[test]
fn the_others_name_a_killed_rank_0() {
    check_killed(0);
}

#[test]
fn ranks_die_with_their_launcher() {
    let running = training();
    assert_eq!(running.processes().len(), 4);
    running.signal(Signal::SIGKILL);
    let start = Instant::now();
    running.wait();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_second_interrupt_ends_ranks_that_cannot_save() {
    let running = training();
    running.signal_rank(1, Signal::SIGSTOP);
    running.signal(Signal::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(running.processes().len(), 4, "the first interrupt waits");
    running.signal(Signal::SIGINT);
    let start = Instant::now();
    assert_eq!(running.wait().status.code(), Some(130));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}
