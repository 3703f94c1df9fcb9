//! The example recognises the digit that lies beside it.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire::models::LeNetConfig;
use bonfire::prelude::*;
use bonfire::tensor::parameters;
use bonfire::trainer::checkpoint::write_safetensors;
use burn::tensor::Device;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

#[test]
fn a_seven_is_a_seven() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    train(&here.join("../../data/digits"), &weights);

    let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
    let output = infer.arg(&weights).arg(here.join("seven.png")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let first = text.lines().next().unwrap();
    let (class, probability) = first.split_once(": ").unwrap();
    assert_eq!(class, "7", "{text}");
    assert!(probability.parse::<f32>().unwrap() > 0.5, "{text}");
}

/// Trains the model of the example for some epochs, and writes it as a run does.
fn train(data: &Path, weights: &Path) {
    let device = Device::flex();
    let digits = IdxImages::open_folder(data, Split::Train).unwrap();
    let image = ImageShape { channels: 1, height: 8, width: 8 };
    let collate = Arc::new(ImageCollate::new(image, Some((0.306, 0.376)), &device));
    let config = LoaderConfig { batch_size: 48, shuffle: true, ..LoaderConfig::default() };
    let loader = DataLoader::new(Arc::new(digits), collate, config);
    let model = LeNetConfig::default().init(image, 10, &device.autodiff()).unwrap();

    let optimizer =
        OptimizerPlan::Adam { lr: 0.004, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 };
    let config = TrainerConfig::new(optimizer).with_max_epochs(5);
    let report = Trainer::new(config, ProcessGroup::single()).fit(model, &loader, None).unwrap();
    let tensors = parameters::read(&report.model, |_| true).unwrap().tensors;
    write_safetensors(weights, &tensors).unwrap();
}
