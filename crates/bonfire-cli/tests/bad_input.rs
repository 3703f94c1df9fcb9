//! Wrong recipes and data: one clear message, soon, and nothing left running.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::fs;
use std::path::Path;
use support::{digits, idx, recipe};

/// Runs the digits recipe with one line more, replaced or added.
fn with_recipe(change: impl Fn(&str) -> String) -> support::Ended {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recipe.toml");
    let digits = support::repository().join("configs/digits.toml");
    fs::write(&path, change(&fs::read_to_string(digits).unwrap())).unwrap();
    recipe(&path).ranks(2).fail()
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known() {
    let ended = with_recipe(|text| text.replace("max_epochs = 15", "max_epoch = 15"));
    ended.says_once(&["unknown key \"train.max_epoch\"", "\"max_epochs\""]);
    ended.says_once(&["recipe.toml:26:1]"]);
    ended.says_once(&["26 | max_epoch = 15"]);
}

#[test]
fn gpus_are_refused_by_a_program_without_cuda_and_by_recipes_without_gpus() {
    for ranks in [1, 2] {
        let ended = digits().ranks(ranks).args(["--device", "cuda"]).fail();
        let last = format!("device \"cuda:{}\" cannot be used", ranks - 1);
        ended.says_once(&[&last, "built without CUDA", "--features cuda"]);
        let ended = digits().ranks(ranks).args(["--engine", "nccl"]).fail();
        ended.says_once(&["engine \"nccl\" cannot be used", "built without CUDA"]);
    }
    let ended = digits().args(["--device", "tpu"]).fail();
    ended.says("possible values: cpu, cuda");
    let ended = with_recipe(|text| text.replace("[train]", "[train]\ndevice = \"gpu\""));
    ended.says_once(&["train.device", "\"gpu\" is not one of \"cpu\", \"cuda\""]);
}

#[test]
fn a_wrong_type_is_named() {
    let ended = with_recipe(|text| text.replace("lr = 0.004", "lr = \"fast\""));
    ended.says_once(&["optimizer.lr", "expected a number"]);
    ended.says_once(&["recipe.toml:31:6]"]);
}

#[test]
fn two_problems_are_told_together() {
    let ended = with_recipe(|text| {
        text.replace("max_epochs = 15", "max_epochs = 0").replace("seed = 1", "sed = 1")
    });
    ended.says_once(&["unknown key \"sed\"", "\"seed\""]);
    ended.says_once(&["train.max_epochs = 0", "must be 1 or more"]);
}

#[test]
fn impossible_numerics_are_told_together_before_anything_starts() {
    let overrides = [
        "optimizer.lr=nan",
        "train.max_epochs=3",
        "schedule.warmup_epochs=4",
        "precision.mode=fp61",
        "clip.max_norm=0",
    ];
    for ranks in [1, 2] {
        let ended = digits().ranks(ranks).set(&overrides).fail();
        ended.says_once(&["optimizer.lr = NaN", "must be 0 or more"]);
        ended.says_once(&["schedule.warmup_epochs = 4", "train.max_epochs = 3"]);
        ended.says_once(&["\"fp61\" is not one of", "\"fp16\""]);
        ended.says_once(&["clip.max_norm = 0", "must be above 0"]);
        let negative = digits().ranks(ranks).set(&["optimizer.lr=-0.1"]).fail();
        negative.says_once(&["optimizer.lr = -0.1", "must be 0 or more"]);
    }
}

#[test]
fn what_only_data_and_model_show_is_told_together_too() {
    // 1,438 images in batches of 479 for each of 3 ranks leave one image.
    let overrides = [
        "model={kind=\"resnet\",depth=8,width=4,norm=\"sync_batch\"}",
        "data.batch_size=479",
        "train={max_epochs=3}",
        "schedule={kind=\"constant\",warmup_steps=99}",
        "optimizer.groups=[{match=\"haed.*\",lr_factor=0.1}]",
    ];
    let ended = digits().ranks(3).set(&overrides).fail();
    ended.says_once(&["the last batch of an epoch has 1 samples for 3 ranks", "drop_last = true"]);
    ended.says_once(&["warm-up of the learning rate takes 99 steps"]);
    ended.says_once(&["(match = \"haed.*\") matches no parameter"]);
}

#[test]
fn a_global_batch_that_cannot_be_shared_is_told_with_one_that_can() {
    digits().ranks(5).fail().says_once(&["data.global_batch_size = 48", "divisible by 5", "45 or"]);
}

#[test]
fn a_missing_recipe_is_named() {
    let ended = recipe(Path::new("/no/such/recipe.toml")).ranks(2).fail();
    ended.says_once(&["/no/such/recipe.toml", "No such file"]);
}

#[test]
fn unknown_models_and_their_unknown_keys_are_named() {
    let ended = digits().ranks(2).set(&["model.kind=lenett"]).fail();
    ended.says_once(&["model.kind = \"lenett\"", "\"lenet\", \"mlp\", \"resnet\""]);
    let ended = digits().ranks(2).set(&["model.hiden=9"]).fail();
    ended.says_once(&["unknown key \"model.hiden\"", "\"hidden\""]);
    // Found only when the model is made.
    digits().ranks(2).set(&["model.hidden=0"]).fail().says_once(&["model.hidden = 0"]);
}

#[test]
fn no_ranks_are_refused() {
    digits().ranks(0).fail().says_once(&["--nproc-per-node", "'0'"]);
}

#[test]
fn a_missing_data_folder_is_named() {
    for ranks in [1, 3] {
        let ended = digits().ranks(ranks).set(&["data.path=/no/such/folder"]).fail();
        ended.says_once(&["/no/such/folder does not exist"]);
    }
    let ended = digits().ranks(2).set(&["data.path=/no", "distributed.engine=local"]).fail();
    ended.says_once(&["/no does not exist"]);
}

#[test]
fn a_truncated_file_is_named_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    idx::write(folder.path(), 20, 10);
    let file = folder.path().join("train-images-idx3-ubyte");
    fs::write(&file, &idx::images(20)[..1000]).unwrap();
    let path = format!("data.path={}", folder.path().display());
    let ended = digits().ranks(2).set(&[&path]).fail();
    ended.says_once(&["train-images-idx3-ubyte", "1000"]);
}

#[test]
fn more_ranks_than_samples_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    idx::write(folder.path(), 2, 2);
    let path = format!("data.path={}", folder.path().display());
    let ended = digits().ranks(3).set(&[&path, "data.batch_size=1"]).fail();
    ended.says_once(&["2 samples for 3 ranks"]);
}

#[test]
fn fewer_test_samples_than_ranks_are_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    idx::write(folder.path(), 13, 1);
    let path = format!("data.path={}", folder.path().display());
    let overrides = [path.as_str(), "data.batch_size=4", "train.max_epochs=2"];
    let summary = digits().ranks(3).set(&overrides).succeed().summary();
    // One sample is right or wrong.
    let accuracy = summary["valid_accuracy"].as_f64().unwrap();
    assert!(accuracy == 0.0 || accuracy == 1.0, "{accuracy}");
    assert_eq!(summary["steps"].as_u64(), Some(4));
}

#[test]
fn a_run_folder_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let out = file.path().join("run");
    let path = support::repository().join("configs/digits.toml");
    for ranks in [1, 3] {
        let ended = support::into(&path, &out).ranks(ranks).fail();
        ended.says_once(&["creating", "Not a directory"]);
        assert!(!ended.stderr.contains("left the group"), "{}", ended.log());
    }
}

#[test]
fn a_diverging_loss_ends_the_run() {
    let sgd = "optimizer={kind=\"sgd\",lr=1e9}";
    for ranks in [1, 2] {
        let ended = digits().ranks(ranks).set(&[sgd]).fail();
        ended.says_once(&["the loss is ", "at step ", "(epoch 0)"]);
        assert!(!ended.run_folder().join("summary.json").exists());
    }
}
