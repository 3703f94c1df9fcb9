//! Weights come from files into recipes and model folders, and out of them.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::checkpoint::read_safetensors;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Train, bonfire, digits, idx, repository};

const SMALL: &str = "model={kind=\"resnet\",depth=8,width=4}";
const ONE_STEP: [&str; 3] = ["train.max_steps=1", "schedule.warmup_epochs=0", "optimizer.lr=0"];

const NARROW: &str = "
kind = \"resnet\"
num_classes = 10
image = { channels = 3, height = 64, width = 64 }
normalize = { mean = 0.5, std = 0.25 }
class_names = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\", \"i\", \"j\"]
config = { depth = 18, stem = \"imagenet\", width = 4 }
";

#[test]
fn a_file_of_pytorch_becomes_a_model_folder_and_a_file_again() {
    let folder = tempfile::tempdir().unwrap();
    let [description, model, out] =
        ["narrow.toml", "model", "out.safetensors"].map(|name| folder.path().join(name));
    fs::write(&description, NARROW).unwrap();
    let file = golden("resnet18_narrow.pt");
    let ended = import(&file, &description, &model).succeed();
    ended.says_once(&["102 tensors", "resnet18_narrow.pt", "PyTorch's names"]);
    import(&file, &description, &model).fail().says_once(&["holds a model already"]);

    let mut predict = bonfire(&["predict"]);
    predict.command().arg(&model).arg(repository().join("examples/infer/seven.png"));
    let ended = predict.succeed();
    let class = ended.stdout.lines().nth(1).unwrap().split(',').nth(1).unwrap().to_string();
    assert!("abcdefghij".contains(&class), "{}", ended.stdout);

    let mut export = bonfire(&["weights", "export"]);
    export.command().arg(&model).arg("--out").arg(&out);
    export.succeed();
    let exported = read_safetensors(&out).unwrap();
    assert_eq!(exported.len(), 102);
    // What was exported is what PyTorch had: importing it makes the same folder.
    let again = folder.path().join("again");
    import(&out, &description, &again).succeed();
    let read = |folder: &Path| read_safetensors(&folder.join("model.safetensors")).unwrap();
    assert_eq!(read(&again), read(&model));
}

#[test]
fn descriptions_and_heads_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (description, model) = (folder.path().join("narrow.toml"), folder.path().join("model"));
    let file = golden("resnet18_narrow.pt");
    for (from, to, says) in [
        ("depth = 18", "depht = 18", "did you mean \"depth\"?"),
        ("num_classes", "number_of_classes", "number_of_classes"),
        ("num_classes = 10", "num_classes = 9", "class_names has 10 names"),
        ("\"resnet\"", "\"resent\"", "no such model; known are"),
    ] {
        fs::write(&description, NARROW.replace(from, to)).unwrap();
        import(&file, &description, &model).fail().says(says);
    }
    let names = NARROW.find("class_names").unwrap();
    let other = NARROW[..names].replace("= 10", "= 3") + &NARROW[NARROW.find("config").unwrap()..];
    fs::write(&description, other).unwrap();
    import(&file, &description, &model).fail().says("--reset-head");
    import(&file, &description, &model)
        .args(["--reset-head"])
        .succeed()
        .says("new remain fc.weight");
}

#[test]
fn a_recipe_begins_with_the_weights_that_it_names() {
    let trained = digits().set(&[SMALL, "train.max_steps=5", "schedule.warmup_epochs=0"]).succeed();
    let file = trained.run_folder().join("model.safetensors");
    let weights = format!("model.weights={}", file.display());
    // Rank 0 reads them, the other gets them; without a rate, parameters stay.
    let ended = digits().ranks(2).set(&[SMALL, &weights]).set(&ONE_STEP).succeed();
    ended.says_once(&["tensors from", "module paths"]);
    let (before, after) = (read_safetensors(&file).unwrap(), read_model(&ended.run_folder()));
    let parameters = before.iter().filter(|(name, _)| !name.contains("running_"));
    assert!(parameters.clone().count() > 20);
    parameters.for_each(|(name, tensor)| assert_eq!(tensor, &after[name], "{name}"));

    let mut plan = digits().ranks(2).set(&[SMALL, &weights]).args(["--dry-run"]);
    plan.command().stdout(std::process::Stdio::null());
    assert!(plan.succeed().stdout.contains("reset_head = false"));
}

#[test]
fn a_head_of_other_classes_stays_new_only_if_asked_for() {
    let trained = digits().set(&[SMALL]).set(&ONE_STEP).succeed();
    let file = trained.run_folder().join("model.safetensors");
    let data = tempfile::tempdir().unwrap();
    idx::write(data.path(), 8, 4);
    let path = format!("data.path={}", data.path().display());
    let weights = format!("model.weights={}", file.display());
    let run = || {
        let batch = ["data.global_batch_size=4"];
        digits().ranks(2).set(&[SMALL, &weights, &path]).set(&batch).set(&ONE_STEP)
    };
    let ended = run().fail();
    ended.says_once(&["other shape: \"fc.weight\" is [16, 10], the model's is [16, 8]"]);
    ended.says_once(&["model.reset_head = true"]);
    let ended = run().set(&["model.reset_head=true"]).succeed();
    ended.says_once(&["new remain fc.weight, fc.bias"]);
    let (before, after) = (read_safetensors(&file).unwrap(), read_model(&ended.run_folder()));
    assert_eq!(before["conv1.weight"], after["conv1.weight"]);
    assert_eq!(after["fc.bias"].shape, [8]);
}

#[test]
fn wrong_keys_are_reported_before_training() {
    let ended = digits().set(&["model.reset_head=true"]).fail();
    ended.says_once(&["model.reset_head = true", "set model.weights"]);
    let ended = digits().set(&["model.weigths=\"x.pt\""]).fail();
    ended.says_once(&["unknown key \"model.weigths\"", "did you mean \"weights\"?"]);
    let ended = digits().set(&["model.weights=\"absent.pt\""]).fail();
    ended.says_once(&["reading weights from \"absent.pt\" failed"]);
}

fn golden(name: &str) -> PathBuf {
    repository().join("tests/golden").join(name)
}

fn import(file: &Path, description: &Path, out: &Path) -> Train {
    let mut call = bonfire(&["weights", "import"]);
    call.command().arg(file).arg("--model").arg(description).arg("--out").arg(out);
    call
}

fn read_model(
    folder: &Path,
) -> std::collections::BTreeMap<String, bonfire_tensor::state::HostTensor> {
    read_safetensors(&folder.join("model.safetensors")).unwrap()
}
