//! Models that differ, and parameters that not every rank uses, are errors on every rank.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::ProcessGroup;
use bonfire_parallel::{DataParallel, DataParallelConfig, FlatOptimizer, ParallelError};
use bonfire_tensor::state::Stateful;
use bonfire_tests::training::{mlp, numbers, small_buckets};
use bonfire_tests::{Precision, Rule, as_rank, results, run_ranks};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn every_rank_names_the_first_parameter_that_differs() {
    let work = |group: &ProcessGroup| {
        let hidden = if group.rank() == 1 { 12 } else { 16 };
        let model = mlp(hidden, 7, &Precision::F32.device());
        DataParallel::new(model, group, small_buckets()).err().unwrap().to_string()
    };
    if as_rank(work) {
        return;
    }
    let test = "every_rank_names_the_first_parameter_that_differs";
    for error in results::<String>(&run_ranks(3, test, &[], DEADLINE)) {
        assert!(error.starts_with("rank 1: parameter \"layers.0.weight\""), "{error}");
        assert!(error.contains("[20, 12]") && error.contains("[20, 16]"), "{error}");
    }
}

#[test]
fn every_rank_names_a_parameter_that_one_does_not_use() {
    let work = |group: &ProcessGroup| {
        let device = Precision::F32.device();
        let mut parallel =
            DataParallel::new(Branches::new(2, &device), group, small_buckets()).unwrap();
        let used = if group.rank() == 1 { 1 } else { 2 };
        let mut optimizer = Rule::Sgd.optimizer();
        step(&mut parallel, optimizer.as_mut(), used, &device).unwrap_err().to_string()
    };
    if as_rank(work) {
        return;
    }
    let test = "every_rank_names_a_parameter_that_one_does_not_use";
    for error in results::<String>(&run_ranks(3, test, &[], DEADLINE)) {
        let names = "no gradient for \"branches.1.weight\", \"branches.1.bias\" on rank 1;";
        assert!(error.starts_with(names), "{error}");
        assert!(!error.contains("\"branches.0."), "{error}");
    }
}

#[test]
fn unused_parameters_are_accepted_on_request() {
    if as_rank(train_with_unused_parameters) {
        return;
    }
    let test = "unused_parameters_are_accepted_on_request";
    let fingerprints: Vec<u64> = results(&run_ranks(2, test, &[], DEADLINE));
    assert_eq!(fingerprints[0], fingerprints[1]);
}

/// Trains three branches, of which rank 0 uses two and rank 1 one, and returns the fingerprint.
fn train_with_unused_parameters(group: &ProcessGroup) -> u64 {
    let device = Precision::F32.device();
    let config = DataParallelConfig { find_unused_parameters: true, ..small_buckets() };
    let mut parallel = DataParallel::new(Branches::new(3, &device), group, config).unwrap();
    let before = numbers(&parallel.state().unwrap());
    let mut optimizer = Rule::Sgd.optimizer();
    for _ in 0..3 {
        step(&mut parallel, optimizer.as_mut(), 2 - group.rank(), &device).unwrap();
    }
    for (path, after) in numbers(&parallel.state().unwrap()) {
        // Weight decay would change it, were it updated with a gradient of zero.
        let unused = path.starts_with("branches.2.");
        assert_eq!(after == before[&path], unused, "{path}");
    }
    parallel.fingerprint().unwrap()
}

/// Linear layers side by side.
#[derive(Module, Debug)]
struct Branches {
    branches: Vec<Linear>,
}

impl Branches {
    fn new(count: usize, device: &Device) -> Self {
        device.seed(7);
        Self { branches: (0..count).map(|_| LinearConfig::new(3, 4).init(device)).collect() }
    }

    /// A loss in which the first `used` branches take part.
    fn loss(&self, input: Tensor<2>, used: usize) -> Tensor<1> {
        let outputs = self.branches[..used].iter().map(|branch| branch.forward(input.clone()));
        Tensor::cat(outputs.collect(), 1).square().mean()
    }
}

fn step(
    parallel: &mut DataParallel<Branches>,
    optimizer: &mut dyn FlatOptimizer,
    used: usize,
    device: &Device,
) -> Result<(), ParallelError> {
    let loss = parallel.replica()?.loss(Tensor::ones([5, 3], device), used);
    parallel.backward(loss)?;
    parallel.step(optimizer, 0.1)?;
    Ok(())
}
