//! With `GradientReduction::PerSample` every sample weighs the same, however they are spread.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]
#![allow(clippy::single_range_in_vec_init, reason = "a rank may have one micro-batch")]

use bonfire_comm::ProcessGroup;
use bonfire_models::Mlp;
use bonfire_nn::{ImageClassifier, cross_entropy};
use bonfire_parallel::{DataParallel, DataParallelConfig, GradientReduction, LossReduction};
use bonfire_tensor::state::Stateful;
use bonfire_tests::training::{HIDDEN, mlp, numbers, small_buckets};
use bonfire_tests::{Precision, Rule, Samples, as_rank, assert_close, results, run_ranks};
use burn::tensor::{Device, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
const SAMPLES: usize = 8;
const NOMINAL: f64 = 4.0;
const TOLERANCE: f64 = 1e-9;

/// Each rank's micro-batches.
type Spread = [&'static [Range<usize>]; 2];

#[test]
fn five_samples_and_three_are_eight() {
    let spread: Spread = [&[0..5], &[5..8]];
    step_equals_one_rank("five_samples_and_three_are_eight", spread, LossReduction::Mean);
}

#[test]
fn micro_batches_may_be_uneven_too() {
    let spread: Spread = [&[0..1, 1..5], &[5..7, 7..8]];
    step_equals_one_rank("micro_batches_may_be_uneven_too", spread, LossReduction::Mean);
}

#[test]
fn a_rank_without_samples_takes_part() {
    let spread: Spread = [&[0..8], &[]];
    step_equals_one_rank("a_rank_without_samples_takes_part", spread, LossReduction::Mean);
}

#[test]
fn a_loss_may_be_a_sum() {
    let spread: Spread = [&[0..5], &[5..8]];
    step_equals_one_rank("a_loss_may_be_a_sum", spread, LossReduction::Sum);
}

fn step_equals_one_rank(test: &str, spread: Spread, reduction: LossReduction) {
    if as_rank(|group| compare_with_one_rank(group, spread[group.rank()], reduction)) {
        return;
    }
    results::<()>(&run_ranks(2, test, &[], DEADLINE));
}

fn compare_with_one_rank(
    group: &ProcessGroup,
    micro_batches: &[Range<usize>],
    reduction: LossReduction,
) {
    let device = Precision::F64.device();
    let per_sample = DataParallelConfig {
        reduction: GradientReduction::PerSample { nominal: NOMINAL },
        ..small_buckets()
    };
    let uneven = step(group, per_sample, &device, micro_batches, reduction);
    let one_rank =
        step(&ProcessGroup::single(), small_buckets(), &device, &[0..SAMPLES], LossReduction::Mean);

    assert_eq!(uneven.weight, SAMPLES as f64);
    for (path, expected) in &one_rank.gradients {
        // Before the step, gradients are the mean over ranks, in units of the nominal micro-batch.
        let scale = NOMINAL * group.world_size() as f64 / SAMPLES as f64;
        let gradient: Vec<f64> = uneven.gradients[path].iter().map(|value| value * scale).collect();
        assert_close(&format!("gradient of {path}"), &gradient, expected, TOLERANCE);
    }
    for (path, expected) in &one_rank.parameters {
        assert_close(path, &uneven.parameters[path], expected, TOLERANCE);
    }
}

/// What a step did.
struct Outcome {
    gradients: BTreeMap<String, Vec<f64>>,
    parameters: BTreeMap<String, Vec<f64>>,
    weight: f64,
}

/// Takes one step over the micro-batches of this rank, which has none if there are none.
fn step(
    group: &ProcessGroup,
    config: DataParallelConfig,
    device: &Device,
    micro_batches: &[Range<usize>],
    reduction: LossReduction,
) -> Outcome {
    let mut parallel = DataParallel::new(mlp(HIDDEN, 7, device), group, config).unwrap();
    let backward = |parallel: &mut DataParallel<Mlp>, micro_batch: &Range<usize>| {
        let samples = Samples::synthetic(micro_batch.clone());
        let logits = parallel.replica().unwrap().forward(samples.images(device));
        let mean = cross_entropy(logits, samples.targets(device));
        let weight = samples.len() as f64;
        let loss = match reduction {
            LossReduction::Mean => mean,
            LossReduction::Sum => mean.mul_scalar(weight),
        };
        parallel.backward_weighted(loss, reduction, weight).unwrap();
    };
    match micro_batches {
        [] => parallel.backward_without_samples().unwrap(),
        [first @ .., last] => {
            for micro_batch in first {
                parallel.no_sync(|parallel| backward(parallel, micro_batch));
            }
            backward(&mut parallel, last);
        }
    }
    parallel.synchronize().unwrap();
    let gradients = gradients(&parallel);
    let mut optimizer = Rule::Sgd.optimizer();
    let report = parallel.step(optimizer.as_mut(), Rule::Sgd.learning_rate()).unwrap();
    let parameters = numbers(&parallel.state().unwrap());
    Outcome { gradients, parameters, weight: report.weight }
}

fn gradients(parallel: &DataParallel<Mlp>) -> BTreeMap<String, Vec<f64>> {
    fn values<const D: usize>(gradient: Option<Tensor<D>>) -> Vec<f64> {
        gradient.unwrap().into_data().try_into_vec::<f64>().unwrap()
    }
    let gradient = |path: &str, dimensions: usize| match dimensions {
        1 => values(parallel.gradient::<1>(path)),
        _ => values(parallel.gradient::<2>(path)),
    };
    let specs = parallel.specs().iter();
    specs.map(|spec| (spec.path.clone(), gradient(&spec.path, spec.shape.len()))).collect()
}
