//! Gradient clipping gives PyTorch's norms and parameters, whoever holds the gradients.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_amp::{Clip, NormType};
use bonfire_comm::ProcessGroup;
use bonfire_nn::{ImageClassifier, cross_entropy};
use bonfire_parallel::{
    DataParallel, DataParallelConfig, ParallelError, SgdConfig, StepOptions, ZeroStage,
};
use bonfire_tensor::state::Stateful;
use bonfire_tests::training::{HIDDEN, mlp, numbers, small_buckets};
use bonfire_tests::{
    Precision, Samples, as_rank, assert_close, assert_close_to_largest, golden, results, run_ranks,
};
use burn::tensor::Device;
use std::time::Duration;

/// Made by `golden/clip.py`, like the figures below.
static GOLDEN: &[u8] = include_bytes!("../golden/clip.safetensors");
const STEPS: usize = 20;
const RATE: f64 = 0.5;
const DEADLINE: Duration = Duration::from_secs(60);

fn rules() -> [(&'static str, Clip); 4] {
    let largest =
        Clip::Norm { max_norm: 0.05, norm_type: NormType::Infinity, error_if_nonfinite: false };
    [
        ("norm", Clip::norm(0.3)),
        ("between", Clip::norm(0.55)),
        ("largest", largest),
        ("value", Clip::value(0.02)),
    ]
}

#[test]
fn clipping_in_double_precision_is_that_of_pytorch() {
    clipping_matches(Precision::F64, "clipping_in_double_precision_is_that_of_pytorch");
}

#[test]
fn clipping_in_single_precision_is_that_of_pytorch() {
    clipping_matches(Precision::F32, "clipping_in_single_precision_is_that_of_pytorch");
}

fn clipping_matches(precision: Precision, test: &str) {
    let work = |group: &ProcessGroup| {
        let device = precision.device();
        for (rule, clip) in rules() {
            for zero_stage in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
                compare(group, &device, precision, rule, clip, zero_stage);
            }
        }
    };
    if as_rank(work) {
        return;
    }
    for world in [1, 2] {
        results::<()>(&run_ranks(world, test, &[], DEADLINE));
    }
}

fn compare(
    group: &ProcessGroup,
    device: &Device,
    precision: Precision,
    rule: &str,
    clip: Clip,
    zero_stage: ZeroStage,
) {
    let config = DataParallelConfig { zero_stage, ..small_buckets() };
    let mut parallel = DataParallel::new(mlp(HIDDEN, 1, device), group, config).unwrap();
    parallel.load_state(golden::initial_state(precision)).unwrap();
    let mut optimizer = SgdConfig::new().init().unwrap();
    let mut norms = Vec::new();
    for batch in &golden::batches()[..STEPS] {
        let len = batch.len() / group.world_size();
        backward(&mut parallel, &batch.slice(group.rank() * len..(group.rank() + 1) * len), device);
        let options = StepOptions::new().with_clip(clip);
        let report = parallel.step_with_options(&mut optimizer, RATE, options).unwrap();
        norms.push(report.grad_norm.unwrap());
    }
    let tolerance = match precision {
        Precision::F64 => 1e-11,
        Precision::F32 => 1e-5,
    };
    let golden =
        |name: &str| golden::numbers_of(GOLDEN, &format!("{rule}/{}/{name}", precision.name()));
    let what = format!("{rule}, {zero_stage:?}");
    assert_close(&format!("{what}: norm"), &norms, &golden("norms"), tolerance);
    let parameters = numbers(&parallel.state().unwrap());
    for path in golden::PARAMETERS {
        let what = format!("{what}: {path}");
        assert_close_to_largest(&what, &parameters[path], &golden(path), tolerance);
    }
}

fn backward(parallel: &mut DataParallel<bonfire_models::Mlp>, samples: &Samples, device: &Device) {
    let logits = parallel.replica().unwrap().forward(samples.images(device));
    parallel.backward(cross_entropy(logits, samples.targets(device))).unwrap();
}

#[test]
fn a_norm_that_is_not_finite_is_an_error_on_every_rank_where_asked_for() {
    for zero_stage in [ZeroStage::Off, ZeroStage::Gradients] {
        let errors = bonfire_comm::local::spawn(3, |group| {
            let device = Device::flex().autodiff();
            let config = DataParallelConfig { zero_stage, ..small_buckets() };
            let mut parallel = DataParallel::new(mlp(HIDDEN, 1, &device), &group, config).unwrap();
            let mut optimizer = SgdConfig::new().init().unwrap();
            let clip =
                Clip::Norm { max_norm: 1.0, norm_type: NormType::Two, error_if_nonfinite: true };
            (0..3).find_map(|step| {
                let samples = Samples::synthetic(step * 4..step * 4 + 4);
                let logits = parallel.replica().unwrap().forward(samples.images(&device));
                let loss = cross_entropy(logits, samples.targets(&device));
                let bad = step == 2 && group.rank() == 1;
                let loss = if bad { loss.mul_scalar(f32::INFINITY) } else { loss };
                parallel.backward(loss).unwrap();
                let options = StepOptions::new().with_clip(clip);
                parallel.step_with_options(&mut optimizer, 0.1, options).err()
            })
        });
        for error in errors {
            let error = error.unwrap();
            assert!(matches!(error, ParallelError::GradientNotFinite { step: 2, .. }), "{error}");
            assert!(error.to_string().contains("clip.error_if_nonfinite"), "{error}");
        }
    }
}

#[test]
fn impossible_bounds_are_refused() {
    let device = Device::flex().autodiff();
    let group = ProcessGroup::single();
    let mut parallel = DataParallel::new(mlp(HIDDEN, 1, &device), &group, small_buckets()).unwrap();
    let mut optimizer = SgdConfig::new().init().unwrap();
    backward(&mut parallel, &Samples::synthetic(0..4), &device);
    let options = StepOptions::new().with_clip(Clip::norm(f64::NAN));
    let error = parallel.step_with_options(&mut optimizer, 0.1, options).unwrap_err();
    assert_eq!(error.to_string(), "max_norm = NaN: must be above 0");
}
