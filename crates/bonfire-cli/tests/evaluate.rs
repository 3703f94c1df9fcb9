//! `bonfire evaluate` finds the figures that a run ended with.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::path::Path;
use support::{Ended, bonfire, digits, idx, images, repository};

#[test]
fn a_run_is_evaluated_again() {
    let averages = ["average.kind=ema", "average.decay=0.98", "train.max_epochs=6"];
    let trained = digits().ranks(2).set(&averages).succeed();
    let (model, summary) = (trained.run_folder(), trained.summary());
    let recipe = repository().join("configs/digits.toml");
    let by_recipe = evaluate(&model, &recipe, &[]).succeed();
    for (name, key) in [("loss", "valid_loss"), ("accuracy", "valid_accuracy")] {
        let expected = summary[key].as_f64().unwrap();
        let got = figure(&by_recipe, name);
        assert!((got - expected).abs() < 1e-4, "{name}: {got} {expected}");
    }
    assert_eq!(figure(&by_recipe, "images"), 359.0);

    let by_folder = evaluate(&model, &repository().join("data/digits"), &["--batch-size", "7"]);
    assert_eq!(by_folder.succeed().stdout, by_recipe.stdout);

    let ema = evaluate(&model, &recipe, &["--variant", "ema"]).succeed();
    let expected = summary["variants"][0]["valid_loss"].as_f64().unwrap();
    assert!((figure(&ema, "loss") - expected).abs() < 1e-4, "{} {expected}", ema.stdout);
    assert_ne!(ema.stdout, by_recipe.stdout);
    let unknown = evaluate(&model, &recipe, &["--variant", "swa"]).fail();
    unknown.says_once(&["no variant \"swa\"", "known are ema"]);

    evaluate(&model, &recipe, &["--batch-size", "0"]).fail().says("--batch-size");

    // The classes add up to the whole.
    let (_, classes) = by_recipe.stdout.split_once("class ").unwrap();
    let classes: Vec<Vec<f64>> = classes.lines().skip(1).map(numbers).collect();
    assert_eq!(classes.len(), 10);
    let images: f64 = classes.iter().map(|class| class[1]).sum();
    let correct: f64 = classes.iter().map(|class| class[1] * class[2]).sum();
    assert_eq!(images, 359.0);
    assert!((correct / images - figure(&by_recipe, "accuracy")).abs() < 1e-3);
}

/// Labels are those of the model, whichever classes are there; pictures get the model's channels.
#[test]
fn folders_of_classes_are_evaluated_with_and_without_splits() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 12, 4);
    let recipe = folder.path().join("recipe.toml");
    let text = format!(
        "seed = 1\n[model]\nkind = \"mlp\"\nhidden = [16]\n[train]\nmax_epochs = 4\n[optimizer]\n\
         kind = \"adamw\"\nlr = 0.01\n[data]\nkind = \"folder\"\nchannels = 1\nglobal_batch_size = 12\n\
         path = {:?}\n",
        folder.path()
    );
    std::fs::write(&recipe, text).unwrap();
    let trained = support::recipe(&recipe).succeed();
    let model = trained.run_folder();
    let by_recipe = evaluate(&model, &recipe, &[]).succeed();
    assert_eq!(figure(&by_recipe, "images"), 8.0);
    for path in [folder.path().to_path_buf(), folder.path().join("val")] {
        assert_eq!(evaluate(&model, &path, &[]).succeed().stdout, by_recipe.stdout);
    }
    // The only class that is left has label 1 all the same.
    std::fs::remove_dir_all(folder.path().join("val/blue")).unwrap();
    let red = evaluate(&model, &folder.path().join("val"), &[]).succeed();
    let line = red.stdout.lines().find(|line| line.starts_with("red ")).unwrap();
    assert_eq!(line.split_whitespace().nth(1), Some("4"), "{}", red.stdout);
    images::write(&folder.path().join("val/green/0.png"), [8, 8], 0, 0);
    let unknown = evaluate(&model, &folder.path().join("val"), &[]).fail();
    unknown.says_once(&["green: class \"green\" is unknown", "blue, red"]);
}

#[test]
fn data_of_other_classes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    idx::write(folder.path(), 4, 4);
    let path = format!("data.path={}", folder.path().display());
    let short = ["data.global_batch_size=4", "train.max_epochs=1", "schedule.warmup_epochs=0"];
    let trained = digits().set(&[&path]).set(&short).succeed();
    let recipe = repository().join("configs/digits.toml");
    let ended = evaluate(&trained.run_folder(), &recipe, &[]).fail();
    ended.says_once(&["the data set has 10 classes, the model knows 4"]);
    evaluate(&trained.run_folder(), &recipe, &["--set", &path]).succeed();
}

fn evaluate(model: &Path, data: &Path, options: &[&str]) -> support::Train {
    let mut call = bonfire(&["evaluate"]);
    call.command().arg(model).arg(data).args(options);
    call
}

fn figure(ended: &Ended, name: &str) -> f64 {
    let line = ended.stdout.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}
