//! `bonfire train --dry-run`: what a recipe means, without training.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::fs;
use support::{digits, repository};

/// A run of 4 epochs of 30 steps that scales its rate and falls twice.
const FALLS: &[&str] = &[
    "train.max_epochs=4",
    "optimizer={kind=\"sgd\",lr=0.1,momentum=0.9,no_decay_on_norms_and_biases=true,weight_decay=1e-4}",
    "schedule={kind=\"multi_step\",milestones=[2,3],warmup_epochs=1,scaling=\"linear\",base_batch_size=12}",
];

#[test]
fn it_prints_the_plan_and_the_rates_and_trains_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("rate.svg");
    let ended = digits().ranks(3).set(FALLS).args(["--dry-run", "--plot"]);
    let ended = ended.args([picture.to_str().unwrap()]).succeed();
    assert!(!ended.run_folder().exists());
    let text = &ended.stdout;
    // As TOML it is the plan: the same for a second time.
    let recipe = folder.path().join("plan.toml");
    fs::write(&recipe, text).unwrap();
    let again = support::recipe(&recipe).ranks(3).args(["--dry-run"]).succeed();
    assert_eq!(&again.stdout, text);
    for part in [
        "# data: 1438 training and 359 test images of 1x8x8, 10 classes",
        "# run: 120 steps, 30 an epoch, of 48 samples (3 rank(s) x 16 x 1 micro-batch(es))",
        "# rate: 0.1 becomes 0.4 (linear: 48 / 12 = 4)",
        "weight decay 0: ",
        "weight decay 0.0001: ",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|line| !line.contains(" learning rate "))
        .skip(1)
        .map(|line| line.split_whitespace().skip(1).collect())
        .collect();
    let expected = [
        ["0", "0.00", "0.04", "0.9", "first"].to_vec(),
        ["30", "1.00", "0.4", "0.9", "end", "of", "warm-up"].to_vec(),
        ["60", "2.00", "0.04", "0.9", "fall"].to_vec(),
        ["90", "3.00", "0.004", "0.9", "fall"].to_vec(),
        ["119", "3.97", "0.004", "0.9", "last"].to_vec(),
    ];
    assert_eq!(rows, expected, "{text}");
    let svg = fs::read_to_string(picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("end of warm-up"), "{svg}");
}

/// Section 2.2 of Goyal et al.: from the rate of 256 images to that of all ranks.
#[test]
fn the_recipe_of_imagenet_warms_up_from_the_unscaled_rate() {
    let recipe = repository().join("configs/imagenet_resnet50.toml");
    let images = "data={kind=\"synthetic\",num_samples=10240,image=[32,32,3],batch_size=32}";
    for (ranks, first, last) in [(16, "0.1", "0.2"), (8, "0.1", "0.1"), (4, "0.05", "0.05")] {
        let ended = support::recipe(&recipe).ranks(ranks).set(&[images]).args(["--dry-run"]);
        let text = ended.succeed().stdout;
        assert!(text.contains("warmup_start = \"base\""), "{text}");
        for (what, rate) in [("first", first), ("end of warm-up", last)] {
            let line = text.lines().find(|line| line.ends_with(what)).unwrap();
            assert_eq!(line.split_whitespace().nth(3), Some(rate), "{ranks} rank(s): {text}");
        }
    }
}

#[test]
fn the_rates_it_prints_are_those_of_the_run() {
    let overrides = ["train.log_every_n_steps=1", "train.max_epochs=3"];
    let printed = digits().set(&overrides).args(["--dry-run"]).succeed().stdout;
    let metrics = digits().set(&overrides).succeed();
    let metrics = fs::read_to_string(metrics.run_folder().join("metrics.csv")).unwrap();
    let rates: Vec<f64> = metrics
        .lines()
        .filter(|line| line.starts_with("train,"))
        .map(|line| line.split(',').nth(3).unwrap().parse().unwrap())
        .collect();
    assert_eq!(rates.len(), 90);
    let rows = printed.lines().skip_while(|line| !line.contains(" learning rate ")).skip(1);
    let mut compared = 0;
    for row in rows {
        let row: Vec<&str> = row.split_whitespace().collect();
        let (step, rate) = (row[1].parse::<usize>().unwrap(), row[3].parse::<f64>().unwrap());
        assert!((rates[step] - rate).abs() <= 1e-5 * rate, "step {step}: {} {rate}", rates[step]);
        compared += 1;
    }
    assert!(compared >= 4, "{printed}");
}

#[test]
fn what_is_wrong_with_the_data_and_the_model_is_told_at_once() {
    let overrides = [
        "train.max_epochs=1",
        "schedule.warmup_steps=31",
        "optimizer.groups=[{match=\"haed.*\",lr_factor=2},{match=\"nothing\",weight_decay=0}]",
    ];
    for dry in [true, false] {
        let train = digits().ranks(2).set(&overrides);
        let ended = if dry { train.args(["--dry-run"]).fail() } else { train.fail() };
        ended.says_once(&["the warm-up of the learning rate takes 31 steps, the whole run 30"]);
        ended.says_once(&["(match = \"haed.*\") matches no parameter", "\"conv1.weight\""]);
        ended.says_once(&["(match = \"nothing\") matches no parameter"]);
    }
}

#[test]
fn a_plot_without_a_dry_run_is_refused() {
    digits().args(["--plot", "rate.svg"]).fail().says("--dry-run");
}
