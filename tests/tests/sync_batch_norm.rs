//! Ranks with synchronised batch normalisation train as one rank on the whole batch.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, ReduceOp};
use bonfire_models::{ResNet, ResNetConfig};
use bonfire_nn::{ImageClassifier, NormKind, connect_sync_batchnorm, cross_entropy};
use bonfire_parallel::{DataParallel, SgdConfig};
use bonfire_tensor::parameters::{self, Role};
use bonfire_tests::samples::{CLASSES, IMAGE};
use bonfire_tests::training::{numbers, small_buckets};
use bonfire_tests::{
    ExactFloats, Memory, Precision, Samples, as_rank, is_rank, results, run_ranks,
};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(120);
/// Divisible by 1, 2 and 3.
const GLOBAL_BATCH: usize = 12;

/// What a rank has seen of a training.
#[derive(Serialize, Deserialize)]
struct Course {
    /// Mean loss of every global batch.
    losses: ExactFloats,
    /// Running statistics after the last step.
    statistics: ExactFloats,
}

#[test]
fn ranks_equal_one_in_double_precision() {
    let test = "ranks_equal_one_in_double_precision";
    if as_rank(|group| train(group, &Precision::F64.device(), 100)) {
        return;
    }
    let alone = results::<Course>(&run_ranks(1, test, &[], DEADLINE)).remove(0);
    for world in [2, 3] {
        for rank in results::<Course>(&run_ranks(world, test, &[], DEADLINE)) {
            assert_within(1e-9, &rank.losses.0, &alone.losses.0, "loss");
            assert_within(1e-9, &rank.statistics.0, &alone.statistics.0, "statistics");
        }
    }
}

#[test]
fn ranks_equal_one_in_single_precision() {
    let test = "ranks_equal_one_in_single_precision";
    if as_rank(|group| train(group, &Precision::F32.device(), 20)) {
        return;
    }
    let alone = results::<Course>(&run_ranks(1, test, &[], DEADLINE)).remove(0);
    for world in [2, 3] {
        for rank in results::<Course>(&run_ranks(world, test, &[], DEADLINE)) {
            assert_within(1e-5, &rank.losses.0[..1], &alone.losses.0[..1], "first loss");
            assert_within(1e-3, &rank.losses.0, &alone.losses.0, "loss");
        }
    }
}

/// On devices, whose statistics and gradients no host sees; in a process of its own, since it is in
/// double precision.
#[test]
fn ranks_on_devices_equal_one() {
    let test = "ranks_on_devices_equal_one";
    let run = |single: &ProcessGroup| {
        let device = Precision::F64.device();
        let alone = train(single, &device, 20);
        for (memory, world) in [(Memory::Device, 2), (Memory::Device, 3), (Memory::Staged, 2)] {
            for rank in memory.spawn(world, |group| train(&group, &device, 20)) {
                assert_within(1e-9, &rank.losses.0, &alone.losses.0, "loss");
                assert_within(1e-9, &rank.statistics.0, &alone.statistics.0, "statistics");
            }
        }
    };
    if is_rank() {
        assert!(as_rank(run));
        return;
    }
    results::<()>(&run_ranks(1, test, &[], DEADLINE));
}

/// Trains a residual network, with `norm = "batch"` on one rank and `"sync_batch"` on several.
fn train(group: &ProcessGroup, device: &Device, steps: usize) -> Course {
    let model = connect_sync_batchnorm(model(group, device), group).unwrap();
    let mut parallel = DataParallel::new(model, group, small_buckets()).unwrap();
    let mut sgd = SgdConfig::new().with_momentum(0.9).init().unwrap();
    let own = GLOBAL_BATCH / group.world_size();
    let step = |step: usize| {
        let start = step * GLOBAL_BATCH + group.rank() * own;
        let batch = Samples::synthetic(start..start + own);
        let scores = parallel.replica().unwrap().forward(batch.images(device));
        let loss = cross_entropy(scores, batch.targets(device));
        let mut mean = [loss.clone().without_autodiff().into_scalar::<f64>()];
        parallel.backward(loss).unwrap();
        parallel.step(&mut sgd, 0.05).unwrap();
        group.all_reduce(&mut mean, ReduceOp::Mean).unwrap();
        mean[0]
    };
    let losses = ExactFloats((0..steps).map(step).collect());
    let buffers = parameters::read(parallel.model(), |spec| spec.role == Role::Buffer).unwrap();
    let statistics = ExactFloats(numbers(&buffers).into_values().flatten().collect());
    Course { losses, statistics }
}

fn model(group: &ProcessGroup, device: &Device) -> ResNet {
    let norm = if group.world_size() == 1 { NormKind::Batch } else { NormKind::SyncBatch };
    static GENERATOR: Mutex<()> = Mutex::new(());
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(7);
    let config = ResNetConfig { depth: 8, width: Some(4), norm, ..ResNetConfig::default() };
    let model = config.init(IMAGE, CLASSES, device).unwrap();
    // Weights are drawn when they are first looked at.
    parameters::inspect(&model).unwrap();
    model
}

fn assert_within(tolerance: f64, got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "number of {what}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let near = (got - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(near, "{what}[{index}] is {got:e}, expected {expected:e} within {tolerance:e}");
    }
}
