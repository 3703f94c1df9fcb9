//! Our optimizers give PyTorch's losses and parameters.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::ProcessGroup;
use bonfire_tensor::state::Stateful;
use bonfire_tests::training::{comparable_steps, numbers};
use bonfire_tests::{Precision, Rule, Training, as_rank, assert_close, golden, results, run_ranks};
use burn::tensor::Device;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn training_in_double_precision_is_that_of_pytorch() {
    training_matches(Precision::F64, "training_in_double_precision_is_that_of_pytorch");
}

#[test]
fn training_in_single_precision_is_that_of_pytorch() {
    training_matches(Precision::F32, "training_in_single_precision_is_that_of_pytorch");
}

fn training_matches(precision: Precision, test: &str) {
    let work = |group: &ProcessGroup| {
        let device = precision.device();
        for rule in [Rule::Sgd, Rule::Nesterov, Rule::Adam, Rule::AdamW] {
            train_and_compare(group, &device, rule, precision);
        }
    };
    if as_rank(work) {
        return;
    }
    for world in [1, 2] {
        results::<()>(&run_ranks(world, test, &[], DEADLINE));
    }
}

fn train_and_compare(group: &ProcessGroup, device: &Device, rule: Rule, precision: Precision) {
    let mut training = Training::new(group, device, rule, 1).unwrap();
    training.parallel.load_state(golden::initial_state(precision)).unwrap();
    let losses: Vec<f64> =
        golden::batches().iter().map(|batch| training.step(batch).unwrap()).collect();

    let tolerance = rule.tolerance(precision);
    let steps = comparable_steps(precision, losses.len());
    let expected = golden::expected(rule.name(), precision, "losses");
    let what = format!("{} {} loss", rule.name(), precision.name());
    assert_close(&what, &losses[..steps], &expected[..steps], tolerance);
    if precision == Precision::F64 {
        let parameters = numbers(&training.parallel.state().unwrap());
        for path in golden::PARAMETERS {
            let expected = golden::expected(rule.name(), precision, path);
            let what = format!("{} {path}", rule.name());
            assert_close(&what, &parameters[path], &expected, tolerance);
        }
    }
}
