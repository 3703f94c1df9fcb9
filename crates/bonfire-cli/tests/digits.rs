//! The main job: the digits, from the recipe to the run folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::checkpoint::read_safetensors;
use bonfire_trainer::config::{Budget, Plan, RunConfig};
use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{Ended, digits};

const EPOCHS: u64 = 15;
/// 1438 training images in global batches of 48.
const STEPS: u64 = EPOCHS * 30;

fn check_run(ranks: usize, threads: usize) {
    let threads_given = threads.to_string();
    let ended = digits().ranks(ranks).env("RAYON_NUM_THREADS", &threads_given).succeed();
    check_first_line(&ended, ranks, threads);
    check_summary(&ended.summary(), ranks);
    ended.says_once(&["epoch 15/15", "train loss", "valid accuracy"]);
    check_table(&ended);
    check_folder(&ended.run_folder(), ranks);
}

#[test]
fn one_rank_learns() {
    check_run(1, 2);
}

#[test]
fn two_ranks_learn() {
    check_run(2, 1);
}

#[test]
fn three_ranks_learn() {
    check_run(3, 1);
}

fn check_first_line(ended: &Ended, ranks: usize, threads: usize) {
    let engine = if ranks == 1 { "single" } else { "host" };
    let plural = if threads == 1 { "" } else { "s" };
    let expected = format!(
        "digits: engine {engine}, device cpu (flex, fp32), world size {ranks} on 1 machine, \
         {threads} thread{plural} per rank"
    );
    assert_eq!(ended.stderr.lines().next(), Some(expected.as_str()), "{}", ended.log());
    // Not a terminal: lines, no bar.
    assert!(!ended.stderr.contains('\u{1b}') && !ended.stderr.contains('\r'), "{}", ended.log());
}

fn check_summary(summary: &Value, ranks: usize) {
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}: {summary}"));
    assert_eq!(summary["world_size"].as_u64(), Some(ranks as u64));
    assert_eq!(summary["epochs"].as_u64(), Some(EPOCHS));
    assert_eq!(summary["steps"].as_u64(), Some(STEPS));
    assert_eq!(summary["stopped"].as_bool(), Some(false));
    assert!((0.97..=1.0).contains(&number(&summary["valid_accuracy"])), "{summary}");
    assert!(number(&summary["train_loss"]) < number(&summary["valid_loss"]), "{summary}");
    assert!(number(&summary["images_per_s"]) > 0.0);
    let first_step = number(&summary["seconds_to_first_step"]);
    assert!(first_step > 0.0 && first_step < 60.0, "{first_step}");
    let parts = ["data", "forward", "backward", "comm_wait", "optimizer"];
    let shares: Vec<f64> = parts.iter().map(|part| number(&summary["time_share"][part])).collect();
    assert!(shares.iter().all(|share| *share >= 0.0), "{shares:?}");
    let sum: f64 = shares.iter().sum();
    assert!(sum > 0.5 && sum <= 1.0, "{shares:?}");
    let fingerprint = summary["parameters_xxh3"].as_str().unwrap();
    assert!(fingerprint.len() == 16 && u64::from_str_radix(fingerprint, 16).is_ok());
}

fn check_table(ended: &Ended) {
    let rows = ["train loss", "test accuracy", "images/s (all ranks)", "time in data"];
    let more = ["time in forward", "time in backward", "time waiting for communication"];
    for row in rows.iter().chain(&more).chain(&["time in optimizer", "run folder"]) {
        assert!(ended.stdout.lines().any(|line| line.starts_with(row)), "{row}\n{}", ended.log());
    }
}

fn check_folder(run: &Path, ranks: usize) {
    let config = RunConfig::load(run.join("config.toml")).unwrap();
    let plan = Plan::resolve(&config, ranks).unwrap();
    assert_eq!((plan.seed, plan.data.global_batch_size), (1, 48));
    assert_eq!(plan.train.budget, Budget::Epochs(EPOCHS));

    let metrics = fs::read_to_string(run.join("metrics.csv")).unwrap();
    let mut rows = metrics.lines();
    assert_eq!(rows.next(), Some("phase,epoch,step,learning_rate,images_per_s,loss,accuracy"));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 7), "{metrics}");
    // Every 10 steps, and every epoch.
    let steps = |phase: &str| -> Vec<u64> {
        let rows = rows.iter().filter(|row| row[0] == phase);
        rows.map(|row| row[2].parse().unwrap()).collect()
    };
    assert_eq!(steps("train"), (1..=STEPS / 10).map(|n| 10 * n).collect::<Vec<_>>());
    assert_eq!(steps("valid"), (1..=EPOCHS).map(|n| 30 * n).collect::<Vec<_>>());

    let tensors = read_safetensors(&run.join("model.safetensors")).unwrap();
    let layers = ["conv1", "conv2", "fc1", "fc2"];
    let paths: Vec<String> =
        layers.iter().flat_map(|l| [format!("{l}.bias"), format!("{l}.weight")]).collect();
    assert_eq!(tensors.keys().cloned().collect::<Vec<_>>(), paths);
    assert_eq!(tensors["conv2.weight"].shape, [32, 16, 3, 3]);

    let model: toml::Table = fs::read_to_string(run.join("model.toml")).unwrap().parse().unwrap();
    assert_eq!(model["kind"].as_str(), Some("lenet"));
    assert_eq!(model["config"]["hidden"].as_integer(), Some(128));
    assert_eq!(model["image"]["width"].as_integer(), Some(8));
}

#[test]
fn the_seed_and_the_world_size_decide_the_parameters() {
    let run = |ranks, seed: &str| {
        digits().ranks(ranks).set(&["train.max_epochs=2", seed]).succeed().fingerprint()
    };
    for ranks in [1, 2] {
        let first = run(ranks, "seed=5");
        assert_eq!(run(ranks, "seed=5"), first, "world size {ranks}");
        assert_ne!(run(ranks, "seed=6"), first, "world size {ranks}");
    }
}

#[test]
fn ranks_share_the_cores() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let ended = digits().ranks(3).set(&["train.max_steps=1", "schedule.warmup_steps=0"]).succeed();
    check_first_line(&ended, 3, (cores / 3).max(1));
}
