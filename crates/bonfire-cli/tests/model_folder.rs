//! Model folders that were written by hand, or damaged: what is wrong is said, and nothing is computed.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_comm::HostBuffer;
use bonfire_trainer::checkpoint::{read_safetensors, write_safetensors};
use std::fs;
use std::path::Path;
use support::{Train, bonfire, digits};

const ONE_STEP: [&str; 3] = ["train.max_steps=1", "schedule.warmup_epochs=0", "optimizer.lr=0"];
const PICTURE: &str = "examples/infer/seven.png";

/// Every command that reads a description, called with one in which one text stands for another.
#[test]
fn wrong_descriptions_are_refused_with_file_and_key() {
    let trained = digits().set(&ONE_STEP).succeed();
    let model = trained.run_folder();
    let file = model.join("model.toml");
    let text = without(&fs::read_to_string(&file).unwrap(), "class_names = [");
    for (from, to, says) in [
        ("height = 8", "height = 0", "image.height = 0: must be from 1 to 65535"),
        ("width = 8", "width = 1000000000000", "image.width = 1000000000000: must be from 1"),
        ("channels = 1\n", "channels = 0\n", "image.channels = 0: must be from 1"),
        ("std = 0.376", "std = 0.0", "normalize.std = 0: must be above 0"),
        ("std = 0.376", "std = [0.4, 0.4]", "normalize.std has 2 numbers for images of 1 channels"),
        ("mean = 0.306", "mean = nan", "normalize.mean = NaN: must be finite"),
        ("hidden = 128", "hidden = 1000000000000", "config.hidden = 1000000000000: a layer would"),
        ("hidden = 128", "hidden = 0", "config.hidden = 0: must be at least 1"),
        ("hidden = 128", "hiden = 128", "unknown key \"config.hiden\""),
        ("kind = \"lenet\"", "kind = \"nope\"", "kind = \"nope\": no such model; known are"),
        ("num_classes = 10", "num_classes = 1", "num_classes = 1: must be at least 2"),
        ("num_classes = 10", "num_classes = 1000000000000", "128 x 1000000000000 weights"),
        ("num_classes = 10", "num_classes = 10\nclass_names = [\"a\"]", "class_names has 1 names"),
        (
            "[image]",
            "[valid_transforms]\nresize = 0\n[image]",
            "valid_transforms.resize = 0: must be",
        ),
    ] {
        assert!(text.contains(from), "{from} is missing in\n{text}");
        fs::write(&file, text.replace(from, to)).unwrap();
        for call in [predict(&model), evaluate(&model), export(&model)] {
            let ended = call.fail();
            ended.says("model.toml\": ");
            ended.says(says);
        }
    }
}

#[test]
fn tensors_of_another_model_are_all_named() {
    let trained = digits().set(&ONE_STEP).succeed();
    let model = trained.run_folder();
    let file = model.join("model.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("hidden = 128", "hidden = 64")).unwrap();
    for call in [predict(&model), export(&model)] {
        let ended = call.fail();
        for (tensor, got, expected) in [
            ("fc1.weight", "[128, 128]", "[128, 64]"),
            ("fc1.bias", "[128]", "[64]"),
            ("fc2.weight", "[128, 10]", "[64, 10]"),
        ] {
            let line = format!("other shape: \"{tensor}\" is {got}, the model's is {expected}");
            ended.says_once(&[&line]);
        }
        ended.says_once(&["model.safetensors\" (module paths) are not those of the model"]);
    }
    // Of very many the first ones.
    let resnet = text.replace("\"lenet\"", "\"resnet\"").replace("hidden = 128", "depth = 18");
    fs::write(&file, without(&resnet, "channels = [")).unwrap();
    let ended = predict(&model).fail();
    ended.says_once(&["missing: 91 more"]);
    ended.says_once(&["unexpected: \"fc1.bias\""]);
}

#[test]
fn scores_that_are_no_numbers_are_an_error() {
    let trained = digits().set(&ONE_STEP).succeed();
    let model = trained.run_folder();
    let file = model.join("model.safetensors");
    let tensors = read_safetensors(&file).unwrap();
    for value in [f32::NAN, f32::INFINITY] {
        let mut damaged = tensors.clone();
        damaged.get_mut("fc2.bias").unwrap().data = HostBuffer::F32(vec![value; 10]);
        write_safetensors(&file, &damaged).unwrap();
        for call in [predict(&model), evaluate(&model)] {
            let ended = call.fail();
            ended.says_once(&["are not finite", "model.toml"]);
            assert!(ended.stdout.lines().count() <= 1, "{}", ended.log());
        }
    }
}

/// A text without the line that begins so.
fn without(text: &str, line: &str) -> String {
    assert!(text.lines().any(|it| it.starts_with(line)), "{line} is missing in\n{text}");
    text.lines().filter(|it| !it.starts_with(line)).map(|it| format!("{it}\n")).collect()
}

fn predict(model: &Path) -> Train {
    bonfire(&["predict", model.to_str().unwrap(), PICTURE])
}

fn evaluate(model: &Path) -> Train {
    bonfire(&["evaluate", model.to_str().unwrap(), "configs/digits.toml"])
}

fn export(model: &Path) -> Train {
    let out = model.join("out.safetensors").display().to_string();
    bonfire(&["weights", "export", model.to_str().unwrap(), "--out", &out])
}
