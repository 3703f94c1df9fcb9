//! What runs in 16 bits, what does not, and what cannot.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_amp::{AmpError, GradScalerConfig, MixedPrecision};
use bonfire_comm::{ProcessGroup, local};
use bonfire_models::Mlp;
use bonfire_nn::{
    ImageClassifier, Norm, NormConfig, NormKind, connect_sync_batchnorm, cross_entropy,
};
use bonfire_parallel::{DataParallel, DataParallelConfig, ParallelError, SgdConfig, StepOptions};
use bonfire_tensor::host::burn_type;
use bonfire_tensor::parameters::{inspect, read};
use bonfire_tests::Samples;
use bonfire_tests::training::{HIDDEN, mlp, small_buckets};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm: Norm,
    frozen: Linear,
    head: Linear,
}

impl Net {
    fn new(kind: NormKind, device: &Device) -> Self {
        let norm = NormConfig::new(kind).with_num_groups(2);
        Self {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            norm: norm.init(4, device).unwrap(),
            frozen: LinearConfig::new(24, 8).init(device).no_grad(),
            head: LinearConfig::new(8, 10).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.norm.forward(self.conv.forward(images));
        self.head.forward(self.frozen.forward(x.flatten(1, 3)))
    }

    fn statistics(&self) -> Vec<(String, DType, Vec<f32>)> {
        let state = read(self, |spec| spec.path.contains("running")).unwrap();
        let entry = |(path, tensor): (String, bonfire_tensor::state::HostTensor)| {
            let dtype = burn_type(tensor.data.dtype());
            (path, dtype, tensor.data.as_slice::<f32>().unwrap().to_vec())
        };
        state.tensors.into_iter().map(entry).collect()
    }
}

fn mixed(mixed_precision: MixedPrecision) -> DataParallelConfig {
    DataParallelConfig { mixed_precision: Some(mixed_precision), ..small_buckets() }
}

/// Trains a [`Net`] for some steps on two ranks; without mixed precision in f32.
fn train_net(
    kind: NormKind,
    mixed_precision: Option<MixedPrecision>,
    steps: usize,
) -> Vec<(Net, f64)> {
    local::spawn(2, |group| {
        let device = Device::flex().autodiff();
        let config =
            DataParallelConfig { mixed_precision: mixed_precision.clone(), ..small_buckets() };
        let model = {
            // One generator for all threads.
            static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
            let _turn = TURN.lock().unwrap();
            device.seed(5);
            let model = Net::new(kind, &device);
            inspect(&model).unwrap();
            model
        };
        let model = connect_sync_batchnorm(model, &group).unwrap();
        let mut parallel = DataParallel::new(model, &group, config).unwrap();
        let mut optimizer = SgdConfig::new().with_momentum(0.9).init().unwrap();
        let mut scaler = GradScalerConfig::new().init().unwrap();
        let mut last = 0.0;
        for step in 0..steps {
            let first = ((step % 4) * 2 + group.rank()) * 16;
            let samples = Samples::synthetic(first..first + 16);
            let mut images = samples.images(&device);
            if let Some(mixed) = &mixed_precision {
                images = mixed.cast_input(images);
            }
            let replica = parallel.replica().unwrap();
            if let Some(mixed) = &mixed_precision {
                let half = mixed.half().dtype();
                assert_eq!(replica.conv.weight.val().dtype(), half);
                assert_eq!(replica.frozen.weight.val().dtype(), half, "frozen, but cast");
                let gamma = match &replica.norm {
                    Norm::Batch(norm) => norm.gamma.val(),
                    Norm::Group(norm) => norm.gamma.as_ref().unwrap().val(),
                    _ => unreachable!(),
                };
                assert_eq!(gamma.dtype(), DType::F32);
            }
            let loss = cross_entropy(replica.forward(images), samples.targets(&device));
            drop(replica);
            assert_eq!(loss.dtype(), DType::F32);
            last = loss.clone().without_autodiff().into_scalar::<f32>().into();
            let scales = mixed_precision.as_ref().is_some_and(MixedPrecision::needs_scaler);
            let loss = if scales { scaler.scale_loss(loss) } else { loss };
            parallel.backward(loss).unwrap();
            parallel.synchronize().unwrap();
            let gradient: Tensor<4> = parallel.gradient("conv.weight").unwrap();
            assert_eq!(gradient.dtype(), DType::F32);
            let mut options = StepOptions::new();
            if scales {
                options = options.with_scaler(&mut scaler);
            }
            parallel.step_with_options(&mut optimizer, 0.05, options).unwrap();
        }
        parallel.synchronize_buffers().unwrap();
        (parallel.model().clone(), last)
    })
}

#[test]
fn parameters_gradients_and_statistics_stay_in_single_precision() {
    for kind in [NormKind::Batch, NormKind::SyncBatch, NormKind::Group] {
        check_net(kind);
    }
}

fn check_net(kind: NormKind) {
    let steps = 41;
    let f32_run = train_net(kind, None, steps);
    for precision in [MixedPrecision::bf16(), MixedPrecision::fp16()] {
        let half_run = train_net(kind, Some(precision.clone()), steps);
        for ((model, loss), (expected_model, expected)) in half_run.into_iter().zip(&f32_run) {
            let specs = inspect(&model).unwrap();
            assert!(specs.iter().all(|spec| burn_type(spec.dtype) == DType::F32));
            assert!(loss < 2.2, "{precision:?} {loss}");
            assert!((loss - expected).abs() < 0.1, "{precision:?} {loss} {expected}");
            let statistics = model.statistics();
            assert_eq!(statistics.len(), if kind == NormKind::Group { 0 } else { 2 });
            for ((path, dtype, got), (_, _, wanted)) in
                statistics.iter().zip(expected_model.statistics())
            {
                assert_eq!(*dtype, DType::F32, "{path}");
                for (got, wanted) in got.iter().zip(wanted) {
                    let close = (got - wanted).abs() < 0.02 * wanted.abs().max(0.5);
                    assert!(close, "{precision:?} {path}: {got} {wanted}");
                }
            }
        }
    }
}

#[derive(Module, Debug)]
struct Bare {
    stages: Vec<BareStage>,
}

#[derive(Module, Debug)]
struct BareStage {
    linear: Linear,
    bn: BatchNorm,
}

#[test]
fn a_batch_norm_of_burn_is_refused_with_its_path_and_the_remedy() {
    let device = Device::flex().autodiff();
    let stage = || BareStage {
        linear: LinearConfig::new(4, 4).init(&device),
        bn: BatchNormConfig::new(4).init(&device),
    };
    let model = Bare { stages: vec![stage(), stage()] };
    let errors = local::spawn(2, |group| {
        let device = Device::flex().autodiff();
        let stage = || BareStage {
            linear: LinearConfig::new(4, 4).init(&device),
            bn: BatchNormConfig::new(4).init(&device),
        };
        let model = Bare { stages: vec![stage()] };
        DataParallel::new(model, &group, mixed(MixedPrecision::fp16())).map(drop).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("\"stages.0.bn\"") && text.contains("fp16"), "{text}");
        assert!(text.contains("bonfire_nn::Norm"), "{text}");
        assert!(matches!(error, ParallelError::Amp(AmpError::BatchNorm { .. })));
    }
    // A module that says it casts inside may hold one, and f32 is as ever.
    let kept = MixedPrecision::bf16().keep_module("BareStage");
    kept.check(&model, &device).unwrap();
    DataParallel::new(model, &ProcessGroup::single(), small_buckets()).unwrap();
}

/// Trains a perceptron on a loss so small that fp16 gradients vanish, and returns the largest gradient of
/// the first step, and the loss before and after.
fn train_tiny_loss(scale: bool) -> (f32, f32, f32) {
    const TINY: f32 = 1e-7;
    let device = Device::flex().autodiff();
    let model = mlp(HIDDEN, 3, &device);
    let mut parallel =
        DataParallel::new(model, &ProcessGroup::single(), mixed(MixedPrecision::fp16())).unwrap();
    let mut optimizer = SgdConfig::new().init().unwrap();
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let samples = Samples::synthetic(0..16);
    let (mut gradient, mut losses) = (0.0, Vec::new());
    for step in 0..60 {
        let images = samples.images(&device).cast(DType::F16);
        let logits = parallel.replica().unwrap().forward(images);
        let loss = cross_entropy(logits, samples.targets(&device)).mul_scalar(TINY);
        losses.push(loss.clone().without_autodiff().into_scalar::<f32>() / TINY);
        parallel.backward(if scale { scaler.scale_loss(loss) } else { loss }).unwrap();
        if step == 0 {
            parallel.synchronize().unwrap();
            let first: Tensor<2> = parallel.gradient("layers.1.weight").unwrap();
            gradient = first.abs().max().into_scalar::<f32>();
        }
        let mut options = StepOptions::new();
        if scale {
            options = options.with_scaler(&mut scaler);
        }
        parallel.step_with_options(&mut optimizer, f64::from(0.5 / TINY), options).unwrap();
    }
    (gradient, losses[0], losses[59])
}

#[test]
fn small_gradients_vanish_without_a_scale_and_train_with_one() {
    let (gradient, before, after) = train_tiny_loss(false);
    assert_eq!((gradient, before), (0.0, after), "underflow");
    let (gradient, before, after) = train_tiny_loss(true);
    assert!(gradient > 0.0 && after < 0.5 * before, "{gradient} {before} {after}");
}

#[test]
fn recomputed_activations_give_the_same_gradients() {
    let train = |checkpointing: bool, mixed_precision: Option<MixedPrecision>| {
        local::spawn(2, |group| {
            let plain = Device::flex().autodiff();
            let device = if checkpointing { plain.gradient_checkpointing() } else { plain };
            let config =
                DataParallelConfig { mixed_precision: mixed_precision.clone(), ..small_buckets() };
            let mut parallel = DataParallel::new(mlp(HIDDEN, 3, &device), &group, config).unwrap();
            let mut optimizer = SgdConfig::new().with_momentum(0.9).init().unwrap();
            for step in 0..4 {
                let first = (step * 2 + group.rank()) * 8;
                let samples = Samples::synthetic(first..first + 8);
                let mut images = samples.images(&device);
                if let Some(mixed) = &mixed_precision {
                    images = mixed.cast_input(images);
                }
                let logits = parallel.replica().unwrap().forward(images);
                parallel.backward(cross_entropy(logits, samples.targets(&device))).unwrap();
                parallel.step(&mut optimizer, 0.1).unwrap();
            }
            parallel.fingerprint().unwrap()
        })
    };
    for mixed_precision in [None, Some(MixedPrecision::bf16())] {
        let kept = train(false, mixed_precision.clone());
        assert_eq!(train(true, mixed_precision), kept);
        assert_eq!(kept[0], kept[1]);
    }
}

#[test]
fn models_that_run_backward_themselves_train_in_bf16_and_not_in_fp16() {
    let device = Device::flex().autodiff();
    let run = |precision: MixedPrecision| {
        let model = mlp(HIDDEN, 3, &device);
        let mut parallel =
            DataParallel::new(model, &ProcessGroup::single(), mixed(precision.clone())).unwrap();
        let samples = Samples::synthetic(0..8);
        parallel.backward_within(|replica: &Mlp| {
            let logits = replica.forward(precision.cast_input(samples.images(&device)));
            drop(cross_entropy(logits, samples.targets(&device)).backward());
        })?;
        parallel.synchronize()?;
        let gradient: Tensor<2> = parallel.gradient("layers.0.weight").unwrap();
        Ok::<_, ParallelError>(gradient)
    };
    let gradient = run(MixedPrecision::bf16()).unwrap();
    assert_eq!(gradient.dtype(), DType::F32);
    assert!(gradient.abs().max().into_scalar::<f32>() > 0.0);
    let error = run(MixedPrecision::fp16()).unwrap_err().to_string();
    assert!(error.contains("Learnable") && error.contains("bf16"), "{error}");
}

#[test]
fn pure_bf16_parameters_train() {
    let fingerprints = local::spawn(2, |group| {
        let device = Device::flex().autodiff();
        let precision = MixedPrecision::bf16();
        let model = precision.cast_for_good(mlp(HIDDEN, 3, &device)).unwrap();
        let mut parallel = DataParallel::new(model, &group, small_buckets()).unwrap();
        let mut optimizer = SgdConfig::new().init().unwrap();
        let mut losses = Vec::new();
        for step in 0..40 {
            let first = ((step % 2) * 2 + group.rank()) * 8;
            let samples = Samples::synthetic(first..first + 8);
            let images = precision.cast_input(samples.images(&device));
            let loss = cross_entropy(
                parallel.replica().unwrap().forward(images),
                samples.targets(&device),
            );
            losses.push(loss.clone().without_autodiff().into_scalar::<f32>());
            parallel.backward(loss).unwrap();
            let clip = bonfire_amp::Clip::norm(1.0);
            let report = parallel
                .step_with_options(&mut optimizer, 0.2, StepOptions::new().with_clip(clip))
                .unwrap();
            assert!(report.grad_norm.unwrap() > 0.0);
        }
        let specs = inspect(parallel.model()).unwrap();
        assert!(specs.iter().all(|spec| spec.dtype == bonfire_comm::DType::BF16));
        // Batches take turns.
        let pair = |first: usize| losses[first] + losses[first + 1];
        assert!(pair(38) < 0.8 * pair(0), "{losses:?}");
        parallel.fingerprint().unwrap()
    });
    assert_eq!(fingerprints[0], fingerprints[1]);
}
