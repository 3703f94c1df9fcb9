//! When a run saves, what it keeps, and what it does where it cannot.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::checkpoint;
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Train, digits};

/// Three epochs of 30 steps.
const SHORT: &str = "train.max_epochs=3";
/// Checkpoints in mid-epoch, all of them kept.
const OFTEN: &[&str] =
    &["checkpoint.every_n_steps=7", "checkpoint.keep_last=99", "checkpoint.asynchronous=false"];

/// Epochs so long that a signal falls into the middle of one.
fn long(ranks: usize) -> Train {
    let overrides = ["train.max_epochs=4", "train.log_every_n_steps=1", "data.batch_size=3"];
    digits().ranks(ranks).set(&overrides)
}

#[test]
fn a_sigterm_and_a_sigusr1_save_too() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGUSR1, 138)] {
        let mut running = long(2).start();
        running.until_training();
        running.signal(signal);
        let stopped = running.wait();
        assert_eq!(stopped.status.code(), Some(code), "{}", stopped.log());
        let summary = stopped.summary();
        assert_eq!(summary["stopped"].as_bool(), Some(true));
        let saved = checkpoint::load(&stopped.run_folder()).unwrap().manifest.step;
        assert_eq!(Some(saved), summary["steps"].as_u64());
    }
}

#[test]
fn the_best_checkpoint_stays_and_is_found() {
    let best = [
        "train.max_epochs=6",
        "schedule.warmup_epochs=1",
        "checkpoint.keep_best=true",
        "checkpoint.monitor=accuracy",
        "checkpoint.keep_last=1",
    ];
    let ended = digits().ranks(2).set(&best).succeed();
    let folder = ended.run_folder().join("checkpoints");
    let name = fs::read_to_string(folder.join("best")).unwrap();
    let step = checkpoint::load(&folder.join(name.trim())).unwrap().manifest.step;
    let metrics = fs::read_to_string(ended.run_folder().join("metrics.csv")).unwrap();
    let head: Vec<&str> = metrics.lines().next().unwrap().split(',').collect();
    let column = head.iter().position(|name| *name == "accuracy").unwrap();
    let valid: Vec<(u64, f64)> = metrics
        .lines()
        .filter(|line| line.starts_with("valid"))
        .map(|line| line.split(',').collect::<Vec<_>>())
        .map(|row| (row[2].parse().unwrap(), row[column].parse().unwrap()))
        .collect();
    // The first of the best.
    let expected =
        valid.iter().fold((0, f64::MIN), |best, row| if row.1 > best.1 { *row } else { best });
    assert_eq!(step, expected.0, "{valid:?}");
    let count = fs::read_dir(&folder).unwrap().flatten();
    let count = count.filter(|e| e.file_name().to_string_lossy().starts_with("step-")).count();
    assert!(count <= 2, "the best and the last: {count}");
    let wrong = ["checkpoint.keep_best=true", "checkpoint.monitor=acuracy", SHORT];
    digits()
        .ranks(2)
        .set(&wrong)
        .fail()
        .says_once(&["checkpoint.monitor = \"acuracy\"", "accuracy"]);
}

#[test]
fn a_checkpoint_is_made_when_the_clock_says_so() {
    let by_clock = ["checkpoint.every_n_minutes=0.00001", "checkpoint.every_n_epochs=0", SHORT];
    let ended = digits().ranks(2).set(&by_clock).set(&["checkpoint.keep_last=999"]).succeed();
    let folder = fs::read_dir(ended.run_folder().join("checkpoints")).unwrap().flatten();
    let count = folder.filter(|e| e.file_name().to_string_lossy().starts_with("step-")).count();
    // One is written while others wait to be replaced by newer ones.
    assert!(count > 3, "{count}");
}

/// What a full disk does: no file may grow beyond the state of the optimizer.
fn on_a_disk_that_is_full(train: Train) -> Train {
    const KIBIBYTES: &str = "120";
    train.through_shell(&format!("trap '' XFSZ; ulimit -f {KIBIBYTES}; exec \"$0\" \"$@\""))
}

#[test]
fn a_full_disk_costs_the_checkpoint_and_not_the_run_unless_asked_to() {
    let ended = on_a_disk_that_is_full(digits().set(&[SHORT])).succeed();
    // At each of three epochs, the last of them at the end, which tries once more.
    assert_eq!(ended.stderr.matches("was not written").count(), 4, "{}", ended.log());
    assert!(ended.run_folder().join("model.safetensors").exists());
    let left = fs::read_dir(ended.run_folder().join("checkpoints")).unwrap().count();
    assert_eq!(left, 0, "what was begun takes no room");

    let stop = digits().set(&[SHORT]).set(&["checkpoint.on_error=stop"]);
    let ended = on_a_disk_that_is_full(stop).fail();
    ended.says_once(&["error: writing", "state.safetensors"]);

    // Who was stopped has nothing else to go on from.
    let mut running = on_a_disk_that_is_full(long(1)).start();
    running.until_training();
    running.signal(Signal::SIGTERM);
    let stopped = running.wait();
    assert_eq!(stopped.status.code(), Some(1), "{}", stopped.log());
    stopped.says_once(&["error: writing", "state.safetensors"]);
}

#[test]
fn a_folder_that_cannot_be_made_is_told_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    fs::create_dir_all(&out).unwrap();
    // A file where the folder of checkpoints should be.
    fs::write(out.join("checkpoints"), "").unwrap();
    let recipe = support::repository().join("configs/digits.toml");
    let train = || support::into(&recipe, &out).ranks(2).args(["--resume", "auto"]).set(&[SHORT]);
    train().fail().says_once(&["error: reading", "checkpoints", "Not a directory"]);
    assert!(
        !out.join("metrics.csv").exists() || fs::read(out.join("metrics.csv")).unwrap().is_empty()
    );
}

#[test]
fn a_folder_that_is_removed_while_the_run_goes_on_is_made_again() {
    let mut running = long(2).set(OFTEN).start();
    running.until_training();
    let checkpoints = running.run_folder().join("checkpoints");
    // A checkpoint that is being written may be in the way.
    let gone = |path: &Path| fs::remove_dir_all(path).is_ok() || !path.exists();
    running.until("its removal", |_| gone(&checkpoints));
    let ended = running.wait();
    assert!(ended.status.success(), "{}", ended.log());
    assert_eq!(checkpoint::load(&checkpoints_of(&ended)).unwrap().manifest.epoch, 4);
}

fn checkpoints_of(ended: &support::Ended) -> PathBuf {
    ended.run_folder().join("checkpoints")
}

#[test]
fn two_runs_do_not_share_a_folder() {
    let mut running = long(1).set(&["train.max_epochs=99"]).start();
    running.until_training();
    let recipe = support::repository().join("configs/digits.toml");
    let second = support::into(&recipe, &running.run_folder()).args(["--resume", "auto"]);
    second.fail().says_once(&["is in use by process"]);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().status.code(), Some(143));
}

#[test]
fn a_run_that_has_ended_keeps_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let recipe = support::repository().join("configs/digits.toml");
    let train = || support::into(&recipe, &out).args(["--resume", "auto"]).set(&[SHORT]);
    train().succeed();
    let files = || ["metrics.csv", "summary.json"].map(|name| fs::read(out.join(name)).unwrap());
    let before = files();
    train().succeed().says("nothing was trained");
    assert!(files() == before);
}
