//! Ranks that somebody starts the wrong way.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::fs;
use support::{Ended, Running, SOON, Train, digits, free_port, idx};

/// Runs two ranks with what each was given, which have to fail.
fn fail(trains: [Train; 2]) -> Vec<Ended> {
    let port = free_port();
    let start = |(rank, train): (usize, Train)| {
        train.with_rank(rank, 2, port).env("BONFIRE_TOKEN", "test").within(SOON).start()
    };
    let ranks: Vec<Running> = trains.into_iter().enumerate().map(start).collect();
    let ended: Vec<Ended> = ranks.into_iter().map(Running::wait).collect();
    for ended in &ended {
        assert_eq!(ended.status.code(), Some(1), "{}", ended.log());
    }
    ended
}

#[test]
fn different_configurations_are_named_on_every_rank() {
    for ended in fail([digits(), digits().set(&["optimizer.lr=0.125"])]) {
        ended.says_once(&["\"optimizer.lr\"", "0.125 and 0.004"]);
    }
}

#[test]
fn different_data_is_named_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    for path in [folder.path(), &other] {
        idx::write(path, 96, 10);
    }
    let mut images = idx::images(96);
    *images.last_mut().unwrap() ^= 1;
    fs::write(other.join("train-images-idx3-ubyte"), images).unwrap();
    let path = format!("data.path={}", folder.path().display());
    let other = format!("data.path={}", other.display());
    for ended in fail([digits().set(&[&path]), digits().set(&[&other])]) {
        ended.says_once(&["rank 1 and rank 0 disagree on data \"training.content\""]);
    }
}

#[test]
fn data_that_one_rank_lacks_is_named_on_every_rank() {
    for ended in fail([digits(), digits().set(&["data.path=/no/such/folder"])]) {
        ended.says_once(&["/no/such/folder does not exist"]);
    }
}

#[test]
fn a_wrong_recipe_on_one_rank_is_told_by_that_rank() {
    let ended = digits().set(&["train.max_epoch=1"]).with_rank(1, 2, free_port()).fail();
    ended.says_once(&["unknown key \"train.max_epoch\""]);
}

#[test]
fn missing_variables_are_listed() {
    let ended = digits().env("RANK", "0").fail();
    ended.says_once(&["WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set, but RANK is"]);
    let ended = digits().with_rank(0, 2, 1).env("WORLD_SIZE", "").fail();
    ended.says_once(&["WORLD_SIZE not set"]);
}

#[test]
fn ranks_of_a_group_are_no_threads() {
    let ended = digits().set(&["distributed.engine=local"]).with_rank(1, 2, free_port()).fail();
    ended.says_once(&["distributed.engine = \"local\"", "RANK"]);
}
