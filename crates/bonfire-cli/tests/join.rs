//! The same training, whoever starts the ranks.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use support::{Ended, Running, digits, free_port};

const EPOCH: &[&str] = &["train.max_epochs=1", "schedule.warmup_epochs=0"];

/// What ranks that the program starts itself come to.
fn launched() -> Ended {
    digits().ranks(2).set(EPOCH).succeed()
}

#[test]
fn ranks_of_another_launcher_train_as_ranks_of_our_own() {
    let port = free_port();
    // As torchrun does, without a token: they find one in a file.
    let ranks: Vec<Running> =
        (0..2).map(|rank| digits().set(EPOCH).with_rank(rank, 2, port).start()).collect();
    let ended: Vec<Ended> = ranks.into_iter().map(Running::wait).collect();
    for (rank, ended) in ended.iter().enumerate() {
        assert!(ended.status.success(), "rank {rank}: {}", ended.log());
    }
    assert_eq!(ended[0].fingerprint(), launched().fingerprint());
    assert!(!ended[1].run_folder().exists(), "rank 1 writes nothing");
    assert_eq!(ended[1].stdout, "");
}

#[test]
fn ranks_that_are_threads_train_as_ranks_that_are_processes() {
    let ended = digits().ranks(2).set(EPOCH).set(&["distributed.engine=local"]).succeed();
    assert!(ended.stderr.contains("engine local"), "{}", ended.log());
    assert_eq!(ended.fingerprint(), launched().fingerprint());
}
