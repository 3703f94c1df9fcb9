//! A residual network is trained by its kind in a recipe, whose keys are read strictly.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::fs;
use support::digits;

const SHORT: [&str; 2] = ["train.max_steps=3", "schedule.warmup_steps=0"];

#[test]
fn a_resnet_trains_on_two_ranks() {
    for norm in ["batch", "sync_batch", "group"] {
        let model =
            format!("model={{kind=\"resnet\",depth=8,width=4,norm=\"{norm}\",norm_groups=2}}");
        // Success says that the ranks end with the same parameters.
        let ended = digits().ranks(2).set(&SHORT).set(&[&model]).succeed();
        let text = fs::read_to_string(ended.run_folder().join("model.toml")).unwrap();
        let written: toml::Table = text.parse().unwrap();
        assert_eq!(written["kind"].as_str(), Some("resnet"));
        let config = &written["config"];
        assert_eq!(
            (config["depth"].as_integer(), config["width"].as_integer()),
            (Some(8), Some(4))
        );
        assert_eq!(config["norm"].as_str(), Some(norm));
        // Defaults that the recipe left out.
        assert_eq!(config["stem"].as_str(), Some("cifar"));
        assert_eq!(config["zero_init_residual"].as_bool(), Some(true));
    }
}

#[test]
fn synchronised_ranks_train_as_one_on_the_whole_batch() {
    let loss = |ranks: usize, norm: &str| {
        let model = format!("model={{kind=\"resnet\",depth=8,width=4,norm=\"{norm}\"}}");
        let ended = digits().ranks(ranks).set(&SHORT).set(&[&model]).succeed();
        ended.summary()["train_loss"].as_f64().unwrap()
    };
    let alone = loss(1, "batch");
    let (synchronised, apart) = (loss(3, "sync_batch"), loss(3, "batch"));
    assert!((synchronised - alone).abs() < 1e-5 * alone, "{synchronised} {alone}");
    assert!((apart - alone).abs() > 1e-4 * alone, "{apart} {alone}");
}

#[test]
fn synchronised_ranks_need_a_sample_each() {
    let model = "model={kind=\"resnet\",depth=8,width=4,norm=\"sync_batch\"}";
    // Of 1,438 digits one is left for the second batch of an epoch, and two ranks without.
    let batch = "data.global_batch_size=1437";
    let says = ["has 1 samples for 3 ranks", "every rank needs one", "drop_last = true"];
    digits().ranks(3).set(&SHORT).set(&[model, batch]).fail().says_once(&says);
    digits().ranks(3).set(&SHORT).set(&[model, batch, "data.drop_last=true"]).succeed();
}

#[test]
fn keys_and_values_that_a_resnet_does_not_know_are_named() {
    for (keys, says) in [
        ("dept=8", &["unknown key \"model.dept\"", "\"depth\""][..]),
        ("hidden=8", &["unknown key \"model.hidden\"", "zero_init_residual"]),
        ("norm=\"batsch\"", &["model.norm", "batsch", "batch", "sync_batch", "group", "none"]),
        ("stem=\"mnist\"", &["model.stem", "mnist", "cifar", "imagenet"]),
        ("depth=20", &["model.depth = 20", "8, 18, 34, 50, 101 or 152"]),
        ("width=0", &["model.width = 0", "at least 1"]),
        ("depth=8,norm=\"group\"", &["model.norm_groups = 32", "16 channels"]),
        ("stem=\"imagenet\"", &["model.stem = \"imagenet\"", "by 32", "8x8", "\"cifar\""]),
    ] {
        let model = format!("model={{kind=\"resnet\",{keys}}}");
        digits().ranks(2).set(&[&model]).fail().says_once(says);
    }
}
