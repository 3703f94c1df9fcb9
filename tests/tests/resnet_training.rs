//! A whole training of a residual network is PyTorch's at every step: SGD with Nesterov momentum, weight decay
//! on neither norms nor biases, label smoothing, warm-up, cosine, and clipping.
//!
//! `golden/resnet_training.py` says how PyTorch's was made; `golden/resnet_training.csv` has the three courses
//! of the loss. With BONFIRE_BLESS set, the test in single precision writes that file.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_amp::Clip;
use bonfire_comm::{HostBuffer, ProcessGroup, ReduceOp};
use bonfire_models::{ResNet, ResNetConfig};
use bonfire_nn::{
    ImageClassifier, ImageShape, NormKind, connect_sync_batchnorm, cross_entropy_smoothed,
};
use bonfire_parallel::{DataParallel, DataParallelConfig, ParameterGroups, SgdConfig, StepOptions};
use bonfire_tensor::parameters;
use bonfire_tensor::state::{HostTensor, State};
use bonfire_tests::golden::numbers_of;
use bonfire_tests::training::{numbers, small_buckets};
use bonfire_tests::{ExactFloats, Precision, as_rank, results, run_ranks};
use bonfire_trainer::config::{Course, RunLength, Schedule, SchedulePlan};
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

static GOLDEN: &[u8] = include_bytes!("../golden/resnet_training.safetensors");
static CURVES: &str = include_str!("../golden/resnet_training.csv");
const DEADLINE: Duration = Duration::from_secs(120);
const CLASSES: usize = 5;
const IMAGE: ImageShape = ImageShape { channels: 3, height: 8, width: 8 };
const STEPS: usize = 100;
const BATCHES: usize = 8;
const BATCH: usize = 8;

/// What a rank has seen of the training.
#[derive(Serialize, Deserialize)]
struct Seen {
    losses: ExactFloats,
    norms: ExactFloats,
    rates: ExactFloats,
    /// Parameters and running statistics after the last step, in path order.
    after: ExactFloats,
}

#[test]
fn in_double_precision_one_rank_and_two_are_pytorch_at_every_step() {
    let test = "in_double_precision_one_rank_and_two_are_pytorch_at_every_step";
    if as_rank(|group| train(group, Precision::F64)) {
        return;
    }
    let mut paths = golden_paths("f64/after/");
    paths.sort();
    let after: Vec<f64> = paths.iter().flat_map(|path| numbers_of(GOLDEN, path)).collect();
    for world in [1, 2] {
        for rank in results::<Seen>(&run_ranks(world, test, &[], DEADLINE)) {
            for (what, got, expected, tolerance) in [
                ("rate", &rank.rates, numbers_of(GOLDEN, "f64/rate"), 1e-12),
                ("loss", &rank.losses, numbers_of(GOLDEN, "f64/loss"), 1e-8),
                ("norm", &rank.norms, numbers_of(GOLDEN, "f64/norm"), 1e-8),
                ("value after the last step", &rank.after, after.clone(), 1e-8),
            ] {
                assert_within(tolerance, &got.0, &expected, &format!("{world} ranks: {what}"));
            }
        }
    }
}

#[test]
fn in_single_precision_the_course_is_no_further_from_the_exact_one_than_pytorch_s() {
    let test = "in_single_precision_the_course_is_no_further_from_the_exact_one_than_pytorch_s";
    if as_rank(|group| train(group, Precision::F32)) {
        return;
    }
    let own = results::<Seen>(&run_ranks(1, test, &[], DEADLINE)).remove(0).losses.0;
    let (exact, peer) = (numbers_of(GOLDEN, "f64/loss"), numbers_of(GOLDEN, "f32/loss"));
    assert_within(1e-4, &own[..5], &exact[..5], "loss");
    // The largest distance of PyTorch's own f32 up to a step.
    let mut farthest = 0.0f64;
    for step in 0..STEPS {
        farthest = farthest.max((peer[step] - exact[step]).abs());
        let distance = (own[step] - exact[step]).abs();
        let bound = if step < 5 { 1e-4 } else { 3.0 * farthest };
        assert!(distance <= bound, "step {step}: {distance:e}, PyTorch's is {farthest:e}");
    }
    if std::env::var_os("BONFIRE_BLESS").is_some() {
        write_curves(&exact, &peer, &own);
        return;
    }
    let committed: Vec<f64> = CURVES
        .lines()
        .skip(1)
        .map(|line| line.rsplit(',').next().unwrap().parse().unwrap())
        .collect();
    // Another CPU may sum in another order.
    assert_within(1e-5, &own, &committed, "loss");
}

/// Trains on this rank's share of every batch, with `norm = "sync_batch"` if there are others.
fn train(group: &ProcessGroup, precision: Precision) -> Seen {
    let device = precision.device();
    let model = connect_sync_batchnorm(model(group, precision, &device), group).unwrap();
    let config = DataParallelConfig {
        parameter_groups: ParameterGroups::new().with_no_decay_on_norms_and_biases(true),
        ..small_buckets()
    };
    let mut parallel = DataParallel::new(model, group, config).unwrap();
    let sgd = SgdConfig::new().with_momentum(0.9).with_nesterov(true).with_weight_decay(0.005);
    let mut sgd = sgd.init().unwrap();
    let length = RunLength { steps_per_epoch: BATCHES as u64, total_steps: STEPS as u64 };
    let plan = SchedulePlan::new(Course::Cosine { min_lr: 0.0 }).with_warmup_steps(10);
    let schedule = Schedule::new(&plan, 0.1, length);
    let batches = batches(group, precision, &device);

    let mut seen = [(); 3].map(|()| Vec::new());
    for step in 0..STEPS {
        let (images, labels) = batches[step % BATCHES].clone();
        let scores = parallel.replica().unwrap().forward(images);
        let loss = cross_entropy_smoothed(scores, labels, 0.1);
        let mut mean = [loss.clone().without_autodiff().into_scalar::<f64>()];
        parallel.backward(loss).unwrap();
        let rate = schedule.lr(step as u64);
        let options = StepOptions::new().with_clip(Clip::norm(0.5));
        let report = parallel.step_with_options(&mut sgd, rate, options).unwrap();
        group.all_reduce(&mut mean, ReduceOp::Mean).unwrap();
        for (all, value) in seen.iter_mut().zip([mean[0], report.grad_norm.unwrap(), rate]) {
            all.push(value);
        }
    }
    let after = parameters::read(parallel.model(), |_| true).unwrap();
    let after = numbers(&after).into_values().flatten().collect();
    let [losses, norms, rates] = seen.map(ExactFloats);
    Seen { losses, norms, rates, after: ExactFloats(after) }
}

fn model(group: &ProcessGroup, precision: Precision, device: &Device) -> ResNet {
    let norm = if group.world_size() == 1 { NormKind::Batch } else { NormKind::SyncBatch };
    let config = ResNetConfig { depth: 8, width: Some(4), norm, ..ResNetConfig::default() };
    let model = config.init(IMAGE, CLASSES, device).unwrap();
    let specs = parameters::inspect(&model).unwrap();
    let mut state = State::default();
    for name in golden_paths("before/") {
        let values = numbers_of(GOLDEN, &name);
        let path = name.trim_start_matches("before/").to_string();
        let spec = specs.iter().find(|spec| spec.path == path).unwrap();
        let data = match precision {
            Precision::F64 => HostBuffer::from(values),
            Precision::F32 => {
                HostBuffer::from(values.into_iter().map(|x| x as f32).collect::<Vec<f32>>())
            }
        };
        state.tensors.insert(path, HostTensor { shape: spec.shape.clone(), data });
    }
    assert_eq!(state.tensors.len(), specs.len());
    parameters::write(model, state).unwrap()
}

/// This rank's part of every batch.
fn batches(
    group: &ProcessGroup,
    precision: Precision,
    device: &Device,
) -> Vec<(Tensor<4>, Tensor<1, Int>)> {
    let (images, own) = (numbers_of(GOLDEN, "images"), BATCH / group.world_size());
    let golden = SafeTensors::deserialize(GOLDEN).unwrap();
    let words = golden.tensor("labels").unwrap().data().chunks_exact(8);
    let labels: Vec<i64> = words.map(|word| i64::from_le_bytes(word.try_into().unwrap())).collect();
    let size = IMAGE.channels * IMAGE.height * IMAGE.width;
    let batch = |index: usize| {
        let first = index * BATCH + group.rank() * own;
        let shape = [own, IMAGE.channels, IMAGE.height, IMAGE.width];
        let values = images[first * size..(first + own) * size].to_vec();
        let data = match precision {
            Precision::F64 => TensorData::new(values, shape),
            Precision::F32 => {
                TensorData::new(values.into_iter().map(|x| x as f32).collect::<Vec<_>>(), shape)
            }
        };
        let labels = &labels[first..first + own];
        (Tensor::from_data(data, device), Tensor::from_data(labels, device))
    };
    (0..BATCHES).map(batch).collect()
}

fn golden_paths(prefix: &str) -> Vec<String> {
    let golden = SafeTensors::deserialize(GOLDEN).unwrap();
    let names = golden.names().into_iter();
    names.filter(|name| name.starts_with(prefix)).map(str::to_string).collect()
}

fn write_curves(exact: &[f64], peer: &[f64], own: &[f64]) {
    let mut text = "step,pytorch_f64,pytorch_f32,bonfire_f32\n".to_string();
    for (step, exact) in exact.iter().enumerate() {
        writeln!(text, "{step},{exact},{},{}", peer[step], own[step]).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/resnet_training.csv");
    std::fs::write(path, text).unwrap();
}

fn assert_within(tolerance: f64, got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let near = (got - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(near, "{what} {index} is {got:e}, expected {expected:e} within {tolerance:e}");
    }
}
