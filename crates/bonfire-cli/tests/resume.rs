//! A run that was stopped and resumed is the run that was not.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::checkpoint;
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Train, digits};

/// Three epochs of 30 steps.
const SHORT: &str = "train.max_epochs=3";
const ADAMW: &[&str] = &[SHORT];
const SGD: &[&str] =
    &[SHORT, "optimizer={kind=\"sgd\",lr=0.05,momentum=0.9,weight_decay=1e-4,nesterov=true}"];
/// Windows of two micro-batches.
const ACCUMULATE: &[&str] = &[SHORT, "train.accumulate_grad_batches=2"];
/// Checkpoints in mid-epoch, all of them kept.
const OFTEN: &[&str] = &["checkpoint.every_n_steps=7", "checkpoint.keep_last=99"];

/// A run's checkpoint after so many steps.
fn checkpoint_of(run: &Path, step: u64) -> PathBuf {
    run.join(format!("checkpoints/step-{step:08}"))
}

/// Trains without an interruption, and then from checkpoints within it.
fn check_checkpoints(ranks: usize, overrides: &[&str]) {
    let train = || digits().ranks(ranks).set(overrides).set(OFTEN);
    let whole = train().succeed();
    // In mid-epoch, at an epoch's last step (30, by epochs), and close to the end.
    for step in [7, 30, 84] {
        let resumed = train().resume(&checkpoint_of(&whole.run_folder(), step)).succeed();
        assert_eq!(resumed.fingerprint(), whole.fingerprint(), "{overrides:?} from step {step}");
        let (resumed, whole) = (resumed.summary(), whole.summary());
        for key in ["steps", "epochs", "valid_loss", "valid_accuracy"] {
            assert_eq!(resumed[key], whole[key], "{key}: {overrides:?} from step {step}");
        }
    }
}

#[test]
fn one_rank_continues_from_any_checkpoint() {
    check_checkpoints(1, ADAMW);
    check_checkpoints(1, SGD);
}

#[test]
fn two_ranks_continue_from_any_checkpoint() {
    check_checkpoints(2, SGD);
    check_checkpoints(2, ACCUMULATE);
}

#[test]
fn three_ranks_continue_from_any_checkpoint() {
    check_checkpoints(3, ADAMW);
}

#[test]
fn a_checkpoint_at_the_last_step_of_an_epoch_by_steps_continues() {
    let train = || digits().ranks(2).set(&[SHORT, "checkpoint.every_n_epochs=0"]);
    let train = || train().set(&["checkpoint.every_n_steps=15", "checkpoint.keep_last=99"]);
    let whole = train().succeed();
    let resumed = train().resume(&checkpoint_of(&whole.run_folder(), 60)).succeed();
    assert_eq!(resumed.fingerprint(), whole.fingerprint());
    assert_eq!(resumed.summary()["valid_loss"], whole.summary()["valid_loss"]);
}

/// Epochs so long that an interrupt falls into the middle of one.
fn long(ranks: usize) -> Train {
    let overrides = ["train.max_epochs=4", "train.log_every_n_steps=1", "data.batch_size=3"];
    digits().ranks(ranks).set(&overrides)
}

fn check_interrupt(ranks: usize) {
    let whole = long(ranks).succeed();
    let mut running = long(ranks).start();
    running.until_training();
    running.signal(Signal::SIGINT);
    let stopped = running.wait();
    assert_eq!(stopped.status.code(), Some(130), "{}", stopped.log());
    let summary = stopped.summary();
    assert_eq!(summary["stopped"].as_bool(), Some(true));
    let steps = summary["steps"].as_u64().unwrap();
    let steps_per_epoch = whole.summary()["steps"].as_u64().unwrap() / 4;
    assert!(steps > 0 && !steps.is_multiple_of(steps_per_epoch), "{steps}");
    assert!(stopped.run_folder().join("model.safetensors").exists());
    assert!(stopped.stdout.contains("--resume"), "{}", stopped.log());

    let resumed = long(ranks).resume(&stopped.run_folder()).succeed();
    assert_eq!(resumed.fingerprint(), whole.fingerprint(), "stopped at step {steps}");
    let resumed = resumed.summary();
    assert_eq!(resumed["stopped"].as_bool(), Some(false));
    assert_eq!(resumed["valid_loss"], whole.summary()["valid_loss"]);
}

#[test]
fn one_interrupted_rank_continues() {
    check_interrupt(1);
}

#[test]
fn two_interrupted_ranks_continue() {
    check_interrupt(2);
}

#[test]
fn three_interrupted_ranks_continue() {
    check_interrupt(3);
}

#[test]
fn a_sigterm_saves_too() {
    let mut running = long(2).start();
    running.until_training();
    running.signal(Signal::SIGTERM);
    let stopped = running.wait();
    assert_eq!(stopped.status.code(), Some(143), "{}", stopped.log());
    assert_eq!(stopped.summary()["stopped"].as_bool(), Some(true));
}

#[test]
fn a_run_killed_without_warning_leaves_a_checkpoint() {
    let often = ["checkpoint.every_n_steps=2", "checkpoint.keep_last=2"];
    let whole = long(2).set(&often).succeed();
    let mut running = long(2).set(&often).start();
    let latest = running.run_folder().join("checkpoints/latest");
    running.until("the first checkpoint", |_| latest.exists());
    running.until_training();
    running.signal(Signal::SIGKILL);
    let killed = running.wait();
    let loaded = checkpoint::load(&killed.run_folder()).unwrap();
    assert!(loaded.manifest.step > 0);
    let resumed = long(2).set(&often).resume(&killed.run_folder()).succeed();
    assert_eq!(resumed.fingerprint(), whole.fingerprint());
}

#[test]
fn what_cannot_be_continued_is_said_once() {
    let saved =
        digits().ranks(2).set(&["train.max_epochs=1", "schedule.warmup_epochs=1"]).succeed();
    let run = saved.run_folder();
    let resume = || digits().set(&["train.max_epochs=2", "schedule.warmup_epochs=1"]).resume(&run);

    let ended = resume().ranks(3).fail();
    ended.says_once(&["saved by 2 rank(s), this run has 3"]);
    let ended = resume().ranks(2).set(&["seed=9"]).fail();
    ended.says_once(&["seed = 1, this run has 9"]);
    let ended = resume().ranks(2).set(&["model.hidden=64"]).fail();
    ended.says_once(&["model.hidden = 128, this run has 64"]);
    let ended = digits().ranks(2).resume(&run.join("nothing")).fail();
    ended.says_once(&["no complete checkpoint at", "nothing"]);

    let file = checkpoint_of(&run, 30).join("state.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    resume().ranks(2).fail().says_once(&["state.safetensors", "damaged", "checksum"]);
}
