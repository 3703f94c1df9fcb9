//! Ranks with different numbers of batches.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, local};
use bonfire_nn::{ImageClassifier, cross_entropy};
use bonfire_parallel::{
    AdamWConfig, Compression, DataParallel, DataParallelConfig, Join, ParallelError,
};
use bonfire_tensor::state::Stateful;
use bonfire_tests::training::{HIDDEN, mlp, numbers, small_buckets};
use bonfire_tests::{Precision, Samples, as_rank, assert_close, results, run_ranks};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
const BATCH: usize = 4;
const TOLERANCE: f64 = 1e-9;
/// Batches of rank r: 2, 5, 0.
const BATCHES: [usize; 3] = [2, 5, 0];

fn batch(rank: usize, step: usize) -> Samples {
    let first = (step * 4 + rank) * BATCH;
    Samples::synthetic(first..first + BATCH)
}

fn rate(step: usize) -> f64 {
    0.01 / (1 + step) as f64
}

#[test]
fn joined_ranks_contribute_zeros_to_a_mean_over_the_world() {
    let test = "joined_ranks_contribute_zeros_to_a_mean_over_the_world";
    check(test, |group| compare(group, Join::InitialWorldSize, Compression::None));
}

#[test]
fn the_mean_can_be_over_the_ranks_that_go_on() {
    let test = "the_mean_can_be_over_the_ranks_that_go_on";
    check(test, |group| compare(group, Join::ActiveRanks, Compression::None));
}

/// Where counts travel apart from the gradients.
#[test]
fn joined_ranks_follow_a_communication_hook() {
    let everything = Compression::TopK { ratio: 1.0 };
    let test = "joined_ranks_follow_a_communication_hook";
    check(test, |group| compare(group, Join::InitialWorldSize, everything));
}

fn check(test: &str, work: impl Fn(&ProcessGroup)) {
    if as_rank(|group| work(group)) {
        return;
    }
    for world in [2, 3] {
        results::<()>(&run_ranks(world, test, &[], DEADLINE));
    }
}

fn compare(group: &ProcessGroup, join: Join, compression: Compression) {
    let device = Precision::F64.device();
    let config =
        DataParallelConfig { join, compression, check_replicas_every: 1, ..small_buckets() };
    let model = mlp(HIDDEN, group.rank() as u64, &device);
    let mut parallel = DataParallel::new(model, group, config).unwrap();
    let mut optimizer = AdamWConfig::new().init().unwrap();
    let own = BATCHES[group.rank()];
    for step in 0..own {
        let samples = batch(group.rank(), step);
        let logits = parallel.replica().unwrap().forward(samples.images(&device));
        parallel.backward(cross_entropy(logits, samples.targets(&device))).unwrap();
        if step % 2 == 0 {
            // A look at the gradients before the step changes nothing.
            parallel.synchronize().unwrap();
        }
        parallel.step(&mut optimizer, rate(step)).unwrap();
    }
    let joined = parallel.join(&mut optimizer).unwrap();
    let longest = BATCHES[..group.world_size()].iter().copied().max().unwrap();
    assert_eq!(joined as usize, longest - own);

    let expected = one_process(group.world_size(), join, longest, &device);
    for (path, values) in numbers(&parallel.state().unwrap()) {
        assert_close(&path, &values, &expected[&path], TOLERANCE);
    }
    // All ranks can go on together, and the moments are equal too.
    let samples = batch(group.rank(), 9);
    let logits = parallel.replica().unwrap().forward(samples.images(&device));
    parallel.backward(cross_entropy(logits, samples.targets(&device))).unwrap();
    parallel.step(&mut optimizer, 0.01).unwrap();
}

fn one_process(
    world: usize,
    join: Join,
    steps: usize,
    device: &Device,
) -> std::collections::BTreeMap<String, Vec<f64>> {
    let group = ProcessGroup::single();
    let model = mlp(HIDDEN, 0, device);
    let mut one = DataParallel::new(model, &group, small_buckets()).unwrap();
    let mut optimizer = AdamWConfig::new().init().unwrap();
    for step in 0..steps {
        let active: Vec<usize> = (0..world).filter(|rank| BATCHES[*rank] > step).collect();
        let divisor = if join == Join::ActiveRanks { active.len() } else { world };
        let replica = one.replica().unwrap();
        let losses = active.iter().map(|rank| {
            let samples = batch(*rank, step);
            let logits = replica.forward(samples.images(device));
            cross_entropy(logits, samples.targets(device))
        });
        let sum = losses.reduce(|sum, loss| sum + loss).unwrap();
        one.backward(sum.mul_scalar(1.0 / divisor as f64)).unwrap();
        one.step(&mut optimizer, rate(step)).unwrap();
    }
    numbers(&one.state().unwrap())
}

#[test]
fn a_rank_that_runs_out_in_the_middle_of_a_window_contributes_what_it_has() {
    let weights = local::spawn(2, |group| {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(1, 1).with_bias(false).init(&device);
        let config = DataParallelConfig { join: Join::InitialWorldSize, ..Default::default() };
        let mut parallel = DataParallel::new(model, &group, config).unwrap();
        let start: f32 = parallel.model().weight.val().into_scalar();
        let mut sgd = bonfire_parallel::SgdConfig::new().init().unwrap();
        let pass = |parallel: &mut DataParallel<Linear>| {
            let replica = parallel.replica().unwrap();
            let one = Tensor::<2>::ones([1, 1], &device);
            parallel.backward(replica.forward(one).sum()).unwrap();
        };
        parallel.no_sync(pass);
        if group.rank() == 0 {
            pass(&mut parallel);
            parallel.step(&mut sgd, 1.0).unwrap();
        }
        parallel.join(&mut sgd).unwrap();
        let end: f32 = parallel.model().weight.val().into_scalar();
        start - end
    });
    // Two micro-batches of rank 0 and one of rank 1, over two ranks.
    for change in weights {
        assert!((change - 1.5).abs() < 1e-6, "{change}");
    }
}

#[test]
fn a_window_that_no_rank_ends_is_stepped_at_the_last_rate() {
    let weights = local::spawn(2, |group| {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(1, 1).with_bias(false).init(&device);
        let config = DataParallelConfig { join: Join::InitialWorldSize, ..Default::default() };
        let mut parallel = DataParallel::new(model, &group, config).unwrap();
        let mut sgd = bonfire_parallel::SgdConfig::new().init().unwrap();
        let pass = |parallel: &mut DataParallel<Linear>| {
            let replica = parallel.replica().unwrap();
            parallel.backward(replica.forward(Tensor::<2>::ones([1, 1], &device)).sum()).unwrap();
        };
        pass(&mut parallel);
        parallel.step(&mut sgd, 0.5).unwrap();
        let start: f32 = parallel.model().weight.val().into_scalar();
        parallel.no_sync(pass);
        parallel.join(&mut sgd).unwrap();
        start - parallel.model().weight.val().into_scalar::<f32>()
    });
    assert!(weights.iter().all(|change| (change - 0.5).abs() < 1e-6), "{weights:?}");
}

#[derive(Module, Debug)]
struct Normalised {
    norm: BatchNorm,
    head: Linear,
}

#[test]
fn running_statistics_come_from_a_rank_that_still_has_batches() {
    let means = local::spawn(2, |group| {
        let device = Device::flex().autodiff();
        let model = Normalised {
            norm: BatchNormConfig::new(1).init(&device),
            head: LinearConfig::new(1, 1).init(&device),
        };
        let config = DataParallelConfig { join: Join::ActiveRanks, ..Default::default() };
        let mut parallel = DataParallel::new(model, &group, config).unwrap();
        let mut sgd = bonfire_parallel::SgdConfig::new().init().unwrap();
        let steps = if group.rank() == 0 { 1 } else { 4 };
        for _ in 0..steps {
            let replica = parallel.replica().unwrap();
            let offset = 100.0 * group.rank() as f32;
            let x = Tensor::<2>::from_data([[offset], [offset + 2.0]], &device);
            let loss = replica.head.forward(replica.norm.forward(x)).sum();
            parallel.backward(loss).unwrap();
            parallel.step(&mut sgd, 0.1).unwrap();
        }
        parallel.join(&mut sgd).unwrap();
        parallel.model().clone().valid().norm.running_mean.value_sync().into_scalar::<f32>()
    });
    // Rank 0 saw a mean of 1 once; rank 1, which went on, 101 three more times.
    assert!(means.iter().all(|mean| *mean > 20.0), "{means:?}");
}

#[test]
fn joining_has_to_be_asked_for() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(1, 1).init(&device);
    let group = ProcessGroup::single();
    let mut parallel = DataParallel::new(model, &group, DataParallelConfig::default()).unwrap();
    let mut sgd = bonfire_parallel::SgdConfig::new().init().unwrap();
    let error = parallel.join(&mut sgd).unwrap_err();
    assert!(matches!(error, ParallelError::Setting { name: "join", .. }), "{error}");
}
