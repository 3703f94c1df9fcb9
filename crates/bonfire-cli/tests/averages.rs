//! The keys of `[average]`.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::checkpoint::read_safetensors;
use support::digits;

#[test]
fn averages_are_evaluated_and_saved() {
    let ema = ["average.kind=ema", "average.decay=0.98"];
    let swa = ["average.kind=swa", "average.start_epoch=6", "average.lr=0.02"];
    for (name, keys) in [("ema", ema.as_slice()), ("swa", swa.as_slice())] {
        let ended = digits().ranks(2).set(keys).set(&["train.max_epochs=10"]).succeed();
        let summary = ended.summary();
        let variant = &summary["variants"][0];
        assert_eq!(variant["name"], name);
        assert!(variant["valid_accuracy"].as_f64().unwrap() > 0.95, "{summary}");
        assert_ne!(variant["valid_loss"], summary["valid_loss"]);
        let folder = ended.run_folder();
        let read = |file: &str| read_safetensors(&folder.join(file)).unwrap();
        let (model, average) =
            (read("model.safetensors"), read(&format!("model_{name}.safetensors")));
        assert!(model.keys().eq(average.keys()));
        assert_ne!(model, average);
        let text = std::fs::read_to_string(folder.join("metrics.csv")).unwrap();
        assert!(text.lines().next().unwrap().contains(&format!("{name}_accuracy")), "{text}");
    }
}

#[test]
fn wrong_settings_are_reported_together_before_training() {
    let overrides = [
        "average.kind=ema",
        "average.decay=1.5",
        "average.every_n_steps=0",
        "average.start_epoch=3",
        "optimizer.lr=-1",
    ];
    let ended = digits().set(&overrides).fail();
    ended.says("average.decay = 1.5: must be from 0 to 1");
    ended.says("average.every_n_steps = 0: must be 1 or more");
    ended.says("average.start_epoch is a key of kind \"swa\", not of \"ema\"");
    ended.says("optimizer.lr = -1");
    digits().set(&["average.decay=0.9"]).fail().says("average.kind is missing");
    let late = ["average.kind=swa", "average.start_epoch=99"];
    digits().set(&late).fail().says("average.start_epoch = 99: must be below train.max_epochs");
}
