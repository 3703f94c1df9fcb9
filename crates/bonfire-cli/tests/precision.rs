//! Double precision from the first weight to the saved model.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_comm::DType;
use bonfire_trainer::checkpoint::read_safetensors;
use support::digits;

#[test]
fn f64_trains_and_is_saved() {
    let overrides = ["precision.mode=f64", "train.max_epochs=2"];
    for ranks in [1, 2] {
        let ended = digits().ranks(ranks).set(&overrides).succeed();
        assert!(ended.stderr.contains("f64"), "{}", ended.log());
        assert!(ended.summary()["valid_accuracy"].as_f64().unwrap() > 0.5, "{}", ended.log());
        let tensors = read_safetensors(&ended.run_folder().join("model.safetensors")).unwrap();
        assert!(tensors.values().all(|tensor| tensor.data.dtype() == DType::F64));
    }
}
