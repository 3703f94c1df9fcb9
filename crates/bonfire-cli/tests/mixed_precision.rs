//! Recipes in bf16 and fp16, and with clipping.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_comm::DType;
use bonfire_trainer::checkpoint::read_safetensors;
use std::fs;
use support::digits;

fn accuracy(overrides: &[&str]) -> f64 {
    let ended = digits().ranks(2).set(overrides).succeed();
    let tensors = read_safetensors(&ended.run_folder().join("model.safetensors")).unwrap();
    assert!(tensors.values().all(|tensor| tensor.data.dtype() == DType::F32));
    ended.summary()["valid_accuracy"].as_f64().unwrap()
}

#[test]
fn half_precision_trains_the_digits_like_single_precision() {
    let single = accuracy(&[]);
    for mode in ["precision.mode=bf16", "precision.mode=fp16"] {
        let half = accuracy(&[mode]);
        assert!(half > single - 0.01 && half >= 0.95, "{mode}: {half}, fp32: {single}");
    }
}

#[test]
fn without_master_weights_the_model_is_saved_in_bf16() {
    let overrides = ["precision.mode=bf16", "precision.master_weights=false", "train.max_epochs=3"];
    let ended = digits().ranks(2).set(&overrides).succeed();
    let tensors = read_safetensors(&ended.run_folder().join("model.safetensors")).unwrap();
    assert!(tensors.values().all(|tensor| tensor.data.dtype() == DType::BF16));
    assert!(ended.summary()["valid_accuracy"].as_f64().unwrap() > 0.5, "{}", ended.log());
}

#[test]
fn a_resumed_fp16_run_is_the_run_that_was_not_interrupted() {
    // A first scale far too high: steps are skipped at the start, and the scale grows again.
    let train = || {
        digits().ranks(2).set(&[
            "precision.mode=fp16",
            "precision.init_scale=1e12",
            "precision.growth_interval=20",
            "clip.max_norm=1",
            "train.max_epochs=3",
            "train.log_every_n_steps=5",
            "checkpoint.every_n_steps=7",
            "checkpoint.asynchronous=false",
            "checkpoint.keep_last=99",
        ])
    };
    let whole = train().succeed();
    let summary = whole.summary();
    assert!(summary["skipped_steps"].as_u64().unwrap() > 3, "{summary}");
    assert_eq!(summary["steps"].as_u64(), Some(90));
    assert!(whole.log().contains("steps skipped after an overflow"), "{}", whole.log());
    for step in [7, 49] {
        let from = whole.run_folder().join(format!("checkpoints/step-{step:08}"));
        let resumed = train().resume(&from).succeed();
        assert_eq!(resumed.fingerprint(), whole.fingerprint(), "from step {step}");
        assert_eq!(resumed.summary()["skipped_steps"], summary["skipped_steps"]);
    }
    let metrics = fs::read_to_string(whole.run_folder().join("metrics.csv")).unwrap();
    let head = metrics.lines().next().unwrap();
    for column in ["grad_norm", "loss_scale", "skipped"] {
        assert!(head.split(',').any(|name| name == column), "{head}");
    }
    let column = head.split(',').position(|name| name == "grad_norm").unwrap();
    let last = metrics.lines().rfind(|line| line.starts_with("train")).unwrap();
    let norm: f64 = last.split(',').nth(column).unwrap().parse().unwrap();
    assert!(norm > 0.0 && norm < 100.0, "{last}");
}

#[test]
fn gradient_checkpointing_changes_nothing_but_memory() {
    for mode in ["precision.mode=fp32", "precision.mode=bf16"] {
        let train = |checkpointing: &str| {
            digits().ranks(2).set(&[mode, checkpointing, "train.max_epochs=2"]).succeed()
        };
        let (kept, computed_again) = (
            train("train.gradient_checkpointing=false"),
            train("train.gradient_checkpointing=true"),
        );
        assert_eq!(computed_again.fingerprint(), kept.fingerprint(), "{mode}");
    }
}

#[test]
fn wrong_settings_are_reported_together_before_training() {
    let overrides = ["precision.mode=fp8", "clip.max_norm=-1", "precision.growth_interval=0"];
    for ranks in [1, 2] {
        let ended = digits().ranks(ranks).set(&overrides).fail();
        ended.says("\"fp8\" is not one of");
        ended.says("clip.max_norm = -1: must be above 0");
        ended.says("precision.growth_interval = 0: must be 1 or more");
    }
}
