//! A run that was stopped and resumed is the run that was not.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::checkpoint;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
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
const OFTEN: &[&str] =
    &["checkpoint.every_n_steps=7", "checkpoint.keep_last=99", "checkpoint.asynchronous=false"];

/// A run's checkpoint after so many steps.
fn checkpoint_of(run: &Path, step: u64) -> PathBuf {
    run.join(format!("checkpoints/step-{step:08}"))
}

/// Trains without an interruption, and then from checkpoints within it: in mid-epoch, at an epoch's
/// last step (30, by epochs), and close to the end.
fn check_checkpoints(ranks: usize, overrides: &[&str]) {
    check_checkpoints_at(&[7, 30, 84], ranks, overrides);
}

fn check_checkpoints_at(steps: &[u64], ranks: usize, overrides: &[&str]) -> support::Ended {
    let train = || digits().ranks(ranks).set(overrides).set(OFTEN);
    let whole = train().succeed();
    for step in steps.iter().copied() {
        let resumed = train().resume(&checkpoint_of(&whole.run_folder(), step)).succeed();
        assert_eq!(resumed.fingerprint(), whole.fingerprint(), "{overrides:?} from step {step}");
        let (resumed, whole) = (resumed.summary(), whole.summary());
        for key in ["steps", "epochs", "valid_loss", "valid_accuracy", "variants", "stopped_early"]
        {
            assert_eq!(resumed[key], whole[key], "{key}: {overrides:?} from step {step}");
        }
    }
    whole
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

/// A scale that grows in mid-epoch, an average, a rate that falls on plateaus and a run that ends early.
#[test]
fn scaler_average_plateau_and_early_stopping_go_on_as_they_were() {
    let whole = check_checkpoints_at(
        &[7, 30, 63, 90],
        2,
        &[
            "train.max_epochs=12",
            "optimizer={kind=\"sgd\",lr=0.1,momentum=0.9}",
            "precision={mode=\"fp16\",init_scale=1024,growth_interval=11}",
            "average={kind=\"ema\",decay=0.9}",
            "schedule={kind=\"reduce_on_plateau\",patience=0,factor=0.5,threshold=0.3}",
            "early_stopping={monitor=\"loss\",patience=2,min_delta=0.1}",
        ],
    );
    let summary = whole.summary();
    assert_eq!(summary["stopped_early"].as_bool(), Some(true), "{summary}");
    assert_eq!(summary["stopped"].as_bool(), Some(false), "{summary}");
    let epochs = summary["epochs"].as_u64().unwrap();
    assert!((4..12).contains(&epochs), "it ends early, after the checkpoints: {summary}");
}

#[test]
fn what_power_sgd_holds_back_goes_on_as_it_was() {
    check_checkpoints_at(
        &[7, 30, 84],
        2,
        &[
            SHORT,
            "optimizer={kind=\"sgd\",lr=0.05,momentum=0.9}",
            "distributed.compression=\"powersgd\"",
        ],
    );
}

#[test]
fn a_checkpoint_at_the_last_step_of_an_epoch_by_steps_continues() {
    let train = || digits().ranks(2).set(&[SHORT, "checkpoint.every_n_epochs=0"]);
    let train = || train().set(&["checkpoint.every_n_steps=15", "checkpoint.keep_last=99"]);
    let train = || train().set(&["checkpoint.asynchronous=false"]);
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

    let ended = resume().ranks(2).set(&["seed=9"]).fail();
    ended.says_once(&["seed = 1, this run has 9"]);
    let ended = resume().ranks(2).set(&["model.hidden=64"]).fail();
    ended.says_once(&["model.hidden = 128, this run has 64"]);
    let ended = digits().ranks(2).resume(&run.join("nothing")).fail();
    ended.says_once(&["no complete checkpoint at", "nothing"]);

    // A run that is refused leaves the one that was there as it was.
    let out = run.clone();
    let recipe = support::repository().join("configs/digits.toml");
    let before = fs::read_to_string(out.join("model.toml")).unwrap();
    let again = support::into(&recipe, &out).ranks(2).args(["--resume", "auto"]);
    again.set(&["train.max_epochs=2", "schedule.warmup_epochs=1", "model.hidden=64"]).fail();
    assert_eq!(fs::read_to_string(out.join("model.toml")).unwrap(), before);

    let ended = resume().ranks(2).set(&["seed=9", "model.hidden=64"]).fail();
    ended.says_once(&["seed = 1, this run has 9"]);
    ended.says_once(&["model.hidden = 128, this run has 64"]);

    damage(&checkpoint_of(&run, 30));
    resume().ranks(2).fail().says_once(&["state.safetensors", "damaged", "checksum"]);
}

/// Changes a bit of a checkpoint.
fn damage(checkpoint: &Path) {
    let file = checkpoint.join("state.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
}

/// In f64, where another number of ranks is visible in the last digits only.
const DOUBLE: &[&str] = &[
    SHORT,
    "precision.mode=f64",
    "optimizer={kind=\"sgd\",lr=0.05,momentum=0.9}",
    "checkpoint.every_n_steps=20",
    "checkpoint.keep_last=99",
    "checkpoint.asynchronous=false",
    "log.samples=true",
    "train.log_every_n_steps=1",
];

/// The samples that a run of so many ranks has had in some steps: epoch and index of each.
fn samples_of(run: &Path, ranks: usize, steps: RangeInclusive<u64>) -> Vec<(u64, usize)> {
    let mut samples = Vec::new();
    for rank in 0..ranks {
        let text = fs::read_to_string(run.join(format!("samples-rank{rank}.csv"))).unwrap();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(',').collect();
            if steps.contains(&fields[1].parse().unwrap()) {
                let epoch = fields[0].parse().unwrap();
                let indices = fields[2].split_whitespace();
                samples.extend(indices.map(|index| (epoch, index.parse().unwrap())));
            }
        }
    }
    samples
}

#[test]
fn other_numbers_of_ranks_go_on_with_the_same_samples() {
    for zero_stage in ["distributed.zero_stage=0", "distributed.zero_stage=1"] {
        let train = |ranks: usize| digits().ranks(ranks).set(DOUBLE).set(&[zero_stage]);
        let whole = train(2).succeed();
        // 2 ranks, then 1, 3 and 2 again, each for a while; all in mid-epoch but for the last.
        let mut from = checkpoint_of(&whole.run_folder(), 20);
        let mut kept = Vec::new();
        let mut samples = samples_of(&whole.run_folder(), 2, 1..=20);
        for (ranks, first, next) in [(1, 21, 40), (3, 41, 80), (2, 81, 90)] {
            let part = train(ranks).resume(&from).succeed();
            assert_eq!(part.summary()["steps"], whole.summary()["steps"], "{ranks} ranks");
            from = checkpoint_of(&part.run_folder(), next);
            let (loss, expected) = (loss_of(&part), loss_of(&whole));
            assert!((loss - expected).abs() < 1e-9, "{ranks} ranks: {loss} {expected}");
            samples.extend(samples_of(&part.run_folder(), ranks, first..=next));
            let (of_part, of_whole) = (losses(&part), losses(&whole));
            assert_eq!(
                of_part.keys().copied().collect::<Vec<_>>(),
                (first..=90).collect::<Vec<_>>()
            );
            for (step, loss) in of_part {
                let expected = of_whole[&step];
                assert!(
                    (loss - expected).abs() < 1e-9,
                    "step {step}, {ranks} ranks: {loss} {expected}"
                );
            }
            kept.push(part);
        }
        samples.sort_unstable();
        let all = (0..3).flat_map(|epoch| (0..1438).map(move |index| (epoch, index)));
        assert!(samples.into_iter().eq(all), "each epoch has each sample once");
    }
}

/// The training losses of a run by step, after those of the checkpoint it went on from.
fn losses(ended: &support::Ended) -> BTreeMap<u64, f64> {
    let metrics = fs::read_to_string(ended.run_folder().join("metrics.csv")).unwrap();
    let head: Vec<&str> = metrics.lines().next().unwrap().split(',').collect();
    let loss = head.iter().position(|name| *name == "loss").unwrap();
    let rows = metrics.lines().filter(|line| line.starts_with("train"));
    let rows = rows.map(|line| line.split(',').collect::<Vec<_>>());
    rows.map(|row| (row[2].parse().unwrap(), row[loss].parse().unwrap())).collect()
}

fn loss_of(ended: &support::Ended) -> f64 {
    ended.summary()["valid_loss"].as_f64().unwrap()
}

#[test]
fn another_global_batch_size_goes_on_through_the_same_epochs() {
    let keep = ["checkpoint.every_n_steps=20", "checkpoint.keep_last=99"];
    let wait = ["checkpoint.asynchronous=false"];
    let whole = digits().ranks(2).set(&[SHORT]).set(&keep).set(&wait).succeed();
    // Ten steps before the end of the first epoch, 478 samples are left: twenty steps of 24.
    let resumed = digits()
        .ranks(2)
        .set(&[SHORT, "data.global_batch_size=24"])
        .resume(&checkpoint_of(&whole.run_folder(), 20))
        .succeed();
    let summary = resumed.summary();
    assert_eq!(summary["epochs"].as_u64(), Some(3), "{summary}");
    // 478 samples of the first epoch in batches of 24, then two epochs of 1,438.
    assert_eq!(summary["steps"].as_u64(), Some(20 + 20 + 2 * 60), "{summary}");
    assert!(resumed.stderr.contains("data.global_batch_size = 48, this run has 24"));
    // The rate has come to its end all the same.
    let metrics = fs::read_to_string(resumed.run_folder().join("metrics.csv")).unwrap();
    let last = metrics.lines().rfind(|line| line.starts_with("train")).unwrap();
    let rate: f64 = last.split(',').nth(3).unwrap().parse().unwrap();
    assert!(rate < 1e-4, "{last}");
}

#[test]
fn one_command_starts_a_run_and_restarts_it() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let recipe = support::repository().join("configs/digits.toml");
    let train = || support::into(&recipe, &out).ranks(2).set(&[SHORT]).set(OFTEN);
    let auto = || train().args(["--resume", "auto"]);
    let first = auto().succeed();
    let summary = || fs::read_to_string(out.join("summary.json")).unwrap();
    let fingerprint = |text: &str| {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        value["parameters_xxh3"].as_str().unwrap().to_string()
    };
    let whole = fingerprint(&summary());
    // It ends where it ended before, and goes on from what is newest and sound.
    for damaged in [vec![], vec![90], vec![90, 84]] {
        damaged.iter().for_each(|step| damage(&checkpoint_of(&out, *step)));
        let again = auto().succeed();
        assert_eq!(fingerprint(&summary()), whole, "{}", again.log());
        let warned = again.stderr.contains("trying the checkpoint before it");
        assert_eq!(warned, !damaged.is_empty(), "{}", again.log());
    }
    train().fail().says_once(&["holds another run", "--resume auto"]);
    digits().args(["--resume", "auto"]).set(&[SHORT]).succeed();
    drop(first);
}

#[test]
fn a_number_of_steps_keeps_its_schedule_with_other_batches() {
    let steps = [
        "train={max_steps=60}",
        "schedule={kind=\"cosine\",warmup_steps=5}",
        "train.log_every_n_steps=1",
        "checkpoint.every_n_steps=30",
        "checkpoint.asynchronous=false",
    ];
    let whole = digits().set(&steps).succeed();
    let from = checkpoint_of(&whole.run_folder(), 30);
    let resumed = digits().set(&steps).set(&["data.global_batch_size=96"]).resume(&from).succeed();
    let rates = |ended: &support::Ended| -> Vec<String> {
        let metrics = fs::read_to_string(ended.run_folder().join("metrics.csv")).unwrap();
        let rows = metrics.lines().filter(|line| line.starts_with("train"));
        let rows = rows.map(|line| line.split(',').collect::<Vec<_>>());
        rows.filter(|row| row[2].parse::<u64>().unwrap() > 32)
            .map(|row| row[3].to_string())
            .collect()
    };
    assert_eq!(rates(&resumed).last(), rates(&whole).last());
    assert_eq!(rates(&resumed)[..10], rates(&whole)[..10]);
}
