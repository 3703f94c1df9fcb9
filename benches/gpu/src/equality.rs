//! The device trains as the CPU does.

use crate::{Place, Result, Section, SectionArgs, model};
use bonfire::amp::{Clip, GradScaler, GradScalerConfig, MixedPrecision};
use bonfire::comm::{ProcessGroup, ReduceOp};
use bonfire::nn::{ImageClassifier, NormKind, connect_sync_batchnorm, cross_entropy};
use bonfire::parallel::{
    AdamWConfig, Compression, DataParallel, DataParallelConfig, FlatOptimizer, SgdConfig,
    StepOptions, ZeroStage,
};
use burn::tensor::{Device, Tensor};
use serde_json::{Value, json};
use std::time::Instant;

const STEPS: usize = 12;
const GLOBAL_BATCH: usize = 16;

/// A way to train.
struct Way {
    name: &'static str,
    norm: NormKind,
    config: fn() -> DataParallelConfig,
    adamw: bool,
    /// Largest relative difference of a loss from the CPU's.
    tolerance: f64,
}

fn plain() -> DataParallelConfig {
    // So small that there are several buckets.
    DataParallelConfig {
        first_bucket_mb: 0.02,
        bucket_cap_mb: 0.1,
        ..DataParallelConfig::default()
    }
}

fn mixed(mixed_precision: MixedPrecision) -> DataParallelConfig {
    DataParallelConfig { mixed_precision: Some(mixed_precision), ..plain() }
}

const WAYS: &[Way] = &[
    Way { name: "f32", norm: NormKind::Group, config: plain, adamw: false, tolerance: 2e-2 },
    Way {
        name: "SyncBatchNorm",
        norm: NormKind::SyncBatch,
        config: plain,
        adamw: false,
        tolerance: 3e-2,
    },
    Way {
        name: "ZeRO-1, AdamW",
        norm: NormKind::Group,
        config: || DataParallelConfig { zero_stage: ZeroStage::Optimizer, ..plain() },
        adamw: true,
        tolerance: 5e-2,
    },
    Way {
        name: "ZeRO-2, AdamW",
        norm: NormKind::Group,
        config: || DataParallelConfig { zero_stage: ZeroStage::Gradients, ..plain() },
        adamw: true,
        tolerance: 5e-2,
    },
    Way {
        name: "gradients as bf16",
        norm: NormKind::Group,
        config: || DataParallelConfig { compression: Compression::Bf16, ..plain() },
        adamw: false,
        tolerance: 5e-2,
    },
    Way {
        name: "gradients as int8",
        norm: NormKind::Group,
        config: || DataParallelConfig { compression: Compression::int8(), ..plain() },
        adamw: false,
        tolerance: 5e-2,
    },
    Way {
        name: "bf16",
        norm: NormKind::SyncBatch,
        config: || mixed(MixedPrecision::bf16()),
        adamw: false,
        tolerance: 1e-1,
    },
    Way {
        name: "fp16 with an overflow on the last rank",
        norm: NormKind::SyncBatch,
        config: || mixed(MixedPrecision::fp16()),
        adamw: false,
        tolerance: 1e-1,
    },
];

/// What a training came to.
struct Course {
    losses: Vec<f64>,
    skipped: Vec<usize>,
    norms: Vec<f64>,
}

fn train(way: &Way, group: &ProcessGroup, device: &Device) -> Result<Course> {
    let model = connect_sync_batchnorm(model::small(way.norm, device)?, group)?;
    let config = (way.config)();
    let mixed = config.mixed_precision.clone();
    let mut parallel = DataParallel::new(model, group, config)?;
    let mut optimizer: Box<dyn FlatOptimizer> = match way.adamw {
        true => Box::new(AdamWConfig::new().init()?),
        false => Box::new(SgdConfig::new().with_momentum(0.9).with_weight_decay(1e-4).init()?),
    };
    // So small that rounding is not blown up in a few steps.
    let rate = 1e-4;
    let scales = mixed.as_ref().is_some_and(MixedPrecision::needs_scaler);
    let mut scaler =
        scales.then(|| GradScalerConfig::new().with_init_scale(256.0).init()).transpose()?;
    let own = GLOBAL_BATCH / group.world_size();
    let mut course = Course { losses: Vec::new(), skipped: Vec::new(), norms: Vec::new() };
    let mut begun = None;
    let train_device = device.clone().autodiff();
    for step in 0..STEPS {
        let start = step % 4 * GLOBAL_BATCH + group.rank() * own;
        let (mut images, classes) = model::samples(start..start + own, &train_device);
        if let Some(mixed) = &mixed {
            images = mixed.cast_input(images);
        }
        let loss = cross_entropy(parallel.replica()?.forward(images), classes);
        let mut mean = [f64::from(loss.clone().without_autodiff().into_scalar::<f32>())];
        let loss = match &scaler {
            Some(scaler) => scaler.scale_loss(overflow_once(loss, step, group)),
            None => loss,
        };
        parallel.backward(loss)?;
        group.all_reduce(&mut mean, ReduceOp::Mean)?;
        course.losses.push(mean[0]);
        // As the trainer does: a step's outcome is read when the next pass was submitted.
        conclude(&mut course, &mut parallel, begun.take(), optimizer.as_mut(), scaler.as_mut())?;
        let mut options = StepOptions::new().with_clip(Clip::norm(5.0));
        if let Some(scaler) = &mut scaler {
            options = options.with_scaler(scaler);
        }
        begun = Some((step, parallel.begin_step(optimizer.as_mut(), rate, options)?));
    }
    conclude(&mut course, &mut parallel, begun.take(), optimizer.as_mut(), scaler.as_mut())?;
    parallel.check_replicas()?;
    Ok(course)
}

fn conclude<M: burn::module::Module>(
    course: &mut Course,
    parallel: &mut DataParallel<M>,
    begun: Option<(usize, bonfire::parallel::StepInProgress)>,
    optimizer: &mut dyn FlatOptimizer,
    scaler: Option<&mut GradScaler>,
) -> Result<()> {
    let Some((step, begun)) = begun else { return Ok(()) };
    let report = parallel.conclude(begun, optimizer, scaler)?;
    if report.skipped {
        course.skipped.push(step);
    }
    course.norms.push(report.grad_norm.unwrap_or(-1.0));
    Ok(())
}

/// The loss, so large in one step on the last rank that its gradients do not fit fp16.
fn overflow_once(loss: Tensor<1>, step: usize, group: &ProcessGroup) -> Tensor<1> {
    match step == 5 && group.rank() + 1 == group.world_size() {
        true => loss.mul_scalar(1e9),
        false => loss,
    }
}

/// Trains each way on the device and on the CPU.
pub(crate) fn one(place: Place) -> Result<Value> {
    compare(&place.single()?, &place.device()?)
}

/// Trains each way on two ranks, and on one rank on the CPU.
pub(crate) fn two(args: &SectionArgs, group: &ProcessGroup) -> Result<Value> {
    let mut found = compare(group, &args.device.device()?)?;
    found["staged"] = json!(args.name == Section::EqualityStaged);
    Ok(found)
}

fn compare(group: &ProcessGroup, device: &Device) -> Result<Value> {
    let mut ways = Vec::new();
    let mut wrong = Vec::new();
    for way in WAYS {
        let start = Instant::now();
        let got = train(way, group, device)?;
        let seconds = start.elapsed().as_secs_f64();
        let expected = train(way, &ProcessGroup::single(), &Device::flex())?;
        let difference = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1e-3);
        let differences: Vec<f64> =
            got.losses.iter().zip(&expected.losses).map(difference).collect();
        let largest = differences.iter().copied().reduce(f64::max).unwrap_or(f64::NAN);
        let largest = if differences.iter().any(|d| d.is_nan()) { f64::NAN } else { largest };
        // The norm of the first gradients, which no step has blurred.
        let norm = got.norms.iter().zip(&expected.norms).map(difference).next();
        // What is no number is wrong, too.
        let is_near = |value: f64| value.is_finite() && value <= way.tolerance;
        let near = is_near(largest) && norm.is_some_and(is_near);
        if !near || got.skipped != expected.skipped {
            wrong.push(format!("{}: {largest:.3e}, skipped {:?}", way.name, got.skipped));
        }
        ways.push(json!({
            "way": way.name,
            "first_difference": differences.first(),
            "largest_difference": largest,
            "difference_of_the_first_norm": norm,
            "tolerance": way.tolerance,
            "losses": got.losses,
            "losses_on_the_cpu": expected.losses,
            "skipped": got.skipped,
            "norms": got.norms,
            "norms_on_the_cpu": expected.norms,
            "seconds": seconds,
        }));
    }
    let found = json!({ "engine": group.engine_name(), "ranks": group.world_size(), "ways": ways, "wrong": wrong });
    match wrong.is_empty() {
        true => Ok(found),
        false => {
            eprintln!("{found}");
            Err(wrong.join("; ").into())
        }
    }
}
