//! An overflow on one rank makes every rank skip the same step, and leaves no trace.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_amp::{Clip, GradScaler, GradScalerConfig, MixedPrecision};
use bonfire_comm::{ProcessGroup, local};
use bonfire_models::Mlp;
use bonfire_nn::{ImageClassifier, cross_entropy};
use bonfire_parallel::{
    AdamWConfig, Compression, DataParallel, DataParallelConfig, FlatOptimizer, GradientReduction,
    Join, LocalSgd, StepInProgress, StepOptions, StepReport, ZeroStage,
};
use bonfire_tensor::state::{State, Stateful};
use bonfire_tests::training::{HIDDEN, mlp, numbers, small_buckets};
use bonfire_tests::{Memory, Samples};
use burn::tensor::{DType, Device};

/// The rank and the step of the overflow.
const BAD_RANK: usize = 1;
const BAD_STEP: usize = 2;
const STEPS: usize = 6;
const BATCH: usize = 4;

/// A training in fp16.
struct Fp16 {
    parallel: DataParallel<Mlp>,
    optimizer: Box<dyn FlatOptimizer>,
    scaler: GradScaler,
    device: Device,
    rank: usize,
}

impl Fp16 {
    fn new(group: &ProcessGroup, config: DataParallelConfig) -> Self {
        let device = Device::flex().autodiff();
        let mixed_precision = Some(MixedPrecision::fp16());
        let config = DataParallelConfig { mixed_precision, ..config };
        Self {
            parallel: DataParallel::new(mlp(HIDDEN, 3, &device), group, config).unwrap(),
            optimizer: Box::new(AdamWConfig::new().init().unwrap()),
            scaler: GradScalerConfig::new().with_init_scale(1024.0).init().unwrap(),
            device,
            rank: group.rank(),
        }
    }

    fn backward(&mut self, step: usize, factor: f32) {
        let first = (step * 3 + self.rank) * BATCH;
        let samples = Samples::synthetic(first..first + BATCH);
        let images = samples.images(&self.device).cast(DType::F16);
        let logits = self.parallel.replica().unwrap().forward(images);
        assert_eq!(logits.dtype(), DType::F16);
        let loss = cross_entropy(logits, samples.targets(&self.device)).mul_scalar(factor);
        self.parallel.backward(self.scaler.scale_loss(loss)).unwrap();
    }

    fn end_step(&mut self) -> StepReport {
        let options = StepOptions::new().with_scaler(&mut self.scaler).with_clip(Clip::norm(1.0));
        self.parallel.step_with_options(self.optimizer.as_mut(), 0.01, options).unwrap()
    }

    fn begin_step(&mut self) -> StepInProgress {
        let options = StepOptions::new().with_scaler(&mut self.scaler).with_clip(Clip::norm(1.0));
        self.parallel.begin_step(self.optimizer.as_mut(), 0.01, options).unwrap()
    }

    fn conclude(&mut self, step: StepInProgress) -> StepReport {
        self.parallel.conclude(step, self.optimizer.as_mut(), Some(&mut self.scaler)).unwrap()
    }

    /// A step of two micro-batches; with `overflow` the first one's gradients do not fit fp16.
    fn step(&mut self, step: usize, overflow: bool) -> StepReport {
        let factor = if overflow { 1e9 } else { 1.0 };
        // In a micro-batch that does not communicate.
        let samples = Samples::synthetic(step * BATCH..(step + 1) * BATCH);
        let images = samples.images(&self.device).cast(DType::F16);
        let targets = samples.targets(&self.device);
        let scaler = self.scaler.clone();
        self.parallel.no_sync(|parallel| {
            let logits = parallel.replica().unwrap().forward(images);
            let loss = cross_entropy(logits, targets).mul_scalar(factor);
            parallel.backward(scaler.scale_loss(loss)).unwrap();
        });
        self.backward(step, 1.0);
        self.end_step()
    }

    /// Everything that the optimizer and the parameters consist of.
    fn state(&mut self) -> (State, State, u64) {
        let model = self.parallel.state().unwrap();
        let moments = self.parallel.optimizer_state(self.optimizer.as_mut()).state().unwrap();
        (model, moments, self.parallel.steps())
    }
}

/// Compresses from the third step on.
const POWER_SGD: Compression = Compression::PowerSgd {
    matrix_approximation_rank: 1,
    min_compression_rate: 2.0,
    start_iter: 2,
    use_error_feedback: true,
    warm_start: true,
    seed: 0,
};

fn configs() -> Vec<DataParallelConfig> {
    let zero = |zero_stage| DataParallelConfig { zero_stage, ..small_buckets() };
    let compressed = |compression| DataParallelConfig { compression, ..small_buckets() };
    let reduction = GradientReduction::PerSample { nominal: BATCH as f64 };
    vec![
        small_buckets(),
        DataParallelConfig { reduction, ..small_buckets() },
        zero(ZeroStage::Optimizer),
        zero(ZeroStage::Gradients),
        compressed(Compression::Fp16),
        compressed(Compression::Bf16),
        compressed(Compression::Fp8 { block: 64 }),
        compressed(POWER_SGD),
        compressed(Compression::Int8 { block: 64 }),
        compressed(Compression::TopK { ratio: 0.1 }),
        DataParallelConfig {
            zero_stage: ZeroStage::Optimizer,
            ..compressed(Compression::Int8 { block: 64 })
        },
        DataParallelConfig { local_sgd: Some(LocalSgd::new(2)), ..small_buckets() },
    ]
}

#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all_and_leaves_no_trace() {
    // The first step lays the buckets out anew.
    let all = configs().into_iter().flat_map(|c| [0, 1, 2].map(|s| (c.clone(), s)));
    for (config, bad_step) in all {
        let places = Memory::ALL.map(|memory| [2, 3].map(|world| (memory, world)));
        for (memory, world) in places.into_iter().flatten() {
            let prints = memory.spawn(world, |group| {
                let mut training = Fp16::new(&group, config.clone());
                for step in 0..STEPS {
                    let before = training.state();
                    let scale = training.scaler.scale();
                    let overflow = step == bad_step && group.rank() == BAD_RANK;
                    let report = training.step(step, overflow);
                    let what = format!("{config:?}, {memory:?}, {world} ranks, step {step}");
                    assert_eq!(report.skipped, step == bad_step, "{what}");
                    assert_eq!(report.grad_norm.is_none(), report.skipped, "{what}");
                    if report.skipped {
                        assert!(training.state() == before, "{what}: something changed");
                        assert_eq!(training.scaler.scale(), scale / 2.0, "{what}");
                    } else {
                        assert!(report.grad_norm.unwrap().is_finite(), "{what}");
                        assert!(training.state() != before, "{what}: nothing changed");
                    }
                    if config.local_sgd.is_none() {
                        training.parallel.check_replicas().unwrap();
                    }
                }
                training.parallel.agree().unwrap();
                assert_eq!(training.parallel.steps(), STEPS as u64 - 1);
                let print = training.parallel.fingerprint().unwrap();
                (print, training.scaler.scale(), training.scaler.growth_tracker())
            });
            assert!(prints.windows(2).all(|pair| pair[0] == pair[1]), "{config:?} {prints:?}");
        }
    }
}

#[test]
fn what_a_hook_holds_back_follows_the_scale() {
    let residuals = |init_scale: f64, growth_interval: u64| {
        let state = local::spawn(2, |group| {
            let compression = Compression::TopK { ratio: 0.05 };
            let mut training =
                Fp16::new(&group, DataParallelConfig { compression, ..small_buckets() });
            let config = GradScalerConfig::new().with_init_scale(init_scale);
            training.scaler = config.with_growth_interval(growth_interval).init().unwrap();
            for step in 0..STEPS {
                training.step(step, false);
            }
            assert_eq!(training.scaler.scale(), 2048.0);
            training.parallel.exchange_state(training.optimizer.as_mut()).unwrap()
        });
        let tensors = state[0].tensors.iter().filter(|(name, _)| name.contains("residual/"));
        let values = tensors.flat_map(|(_, tensor)| tensor.data.as_slice::<f32>().unwrap());
        values.map(|value| f64::from(*value)).collect::<Vec<_>>()
    };
    // Both end with the same scale, one after two growths.
    let (constant, growing) = (residuals(2048.0, 100), residuals(512.0, 3));
    let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
    let difference: Vec<f64> = constant.iter().zip(&growing).map(|(a, b)| a - b).collect();
    let relative = norm(&difference) / norm(&constant);
    assert!(relative < 0.02, "{relative}");
}

#[test]
fn ranks_that_ran_out_of_batches_skip_too() {
    let run = |group: ProcessGroup| {
        let config = DataParallelConfig { join: Join::ActiveRanks, ..small_buckets() };
        let mut training = Fp16::new(&group, config);
        let mut skipped = Vec::new();
        let batches = if group.rank() == 0 { 2 } else { 5 };
        for step in 0..batches {
            let overflow = step == 3 && group.rank() == BAD_RANK;
            training.backward(step, if overflow { 1e9 } else { 1.0 });
            skipped.push(training.end_step().skipped);
        }
        let options =
            StepOptions::new().with_scaler(&mut training.scaler).with_clip(Clip::norm(1.0));
        training.parallel.join_with_options(training.optimizer.as_mut(), options).unwrap();
        training.parallel.check_replicas().unwrap();
        assert_eq!(skipped, [false, false, false, true, false][..batches]);
        (training.parallel.steps(), training.scaler.scale(), training.scaler.skipped_steps())
    };
    for memory in Memory::ALL {
        assert_eq!(memory.spawn(3, run), [(4, 512.0, 1); 3], "{memory:?}");
    }
}

#[test]
fn a_continuation_has_the_same_bits_with_scale_and_tracker() {
    let configs = configs().into_iter().filter(|config| config.local_sgd.is_none());
    for (config, memory) in configs.flat_map(|config| Memory::ALL.map(|m| (config.clone(), m))) {
        let whole = train(&config, 0..STEPS, None, memory);
        let saved = train(&config, 0..BAD_STEP + 2, None, memory);
        let resumed = train(&config, BAD_STEP + 2..STEPS, Some(&saved), memory);
        assert!(resumed == whole, "{config:?} {memory:?}");
        assert_eq!(whole.3.clone().take_float("scale").unwrap(), 512.0);
    }
}

/// A device's figures are read when the next pass has been submitted.
#[test]
fn a_step_that_is_concluded_after_the_next_pass_is_the_same() {
    for config in configs().into_iter().filter(|config| config.local_sgd.is_none()) {
        let run = |late: bool| {
            Memory::Device.spawn(2, |group| {
                let mut training = Fp16::new(&group, config.clone());
                let mut reports = Vec::new();
                let mut begun = None;
                for step in 0..STEPS {
                    let bad = (step == 0 || step == BAD_STEP) && group.rank() == BAD_RANK;
                    training.backward(step, if bad { 1e9 } else { 1.0 });
                    reports.extend(begun.take().map(|step| training.conclude(step)));
                    let next = training.begin_step();
                    // What a hook holds back has to hear of a new scale at once.
                    let plain = [Compression::None, Compression::Fp16, Compression::Bf16];
                    let waits = !plain.contains(&config.compression);
                    assert_eq!(next.is_known(), waits, "{config:?}");
                    match late {
                        true => begun = Some(next),
                        false => reports.push(training.conclude(next)),
                    }
                }
                reports.extend(begun.take().map(|step| training.conclude(step)));
                let skipped: Vec<bool> = reports.iter().map(|report| report.skipped).collect();
                assert_eq!(skipped, [true, false, true, false, false, false], "{config:?}");
                assert_eq!(training.parallel.steps(), STEPS as u64 - 2);
                (reports, training.state(), training.scaler.state().unwrap())
            })
        };
        assert!(run(true) == run(false), "{config:?}");
    }
}

/// What the device finds out equals what the host does, but for rounding.
#[test]
fn training_on_a_device_is_that_on_the_host() {
    for config in configs() {
        let run = |memory: Memory| {
            memory.spawn(2, |group| {
                let mut training = Fp16::new(&group, config.clone());
                let norms: Vec<Option<f64>> = (0..STEPS)
                    .map(|step| {
                        let bad = step == BAD_STEP && group.rank() == BAD_RANK;
                        training.step(step, bad).grad_norm
                    })
                    .collect();
                training.parallel.agree().unwrap();
                (norms, training.parallel.state().unwrap(), training.scaler.scale())
            })
        };
        let host = run(Memory::Host);
        for memory in [Memory::Device, Memory::Staged] {
            for (there, here) in run(memory).into_iter().zip(&host) {
                assert_eq!(there.2, here.2);
                for (norm, expected) in there.0.iter().zip(&here.0) {
                    let near = match (norm, expected) {
                        (Some(norm), Some(expected)) => (norm / expected - 1.0).abs() < 2e-2,
                        (norm, expected) => norm == expected,
                    };
                    assert!(near, "{config:?} {memory:?}: norm {norm:?} {expected:?}");
                }
                let expected = numbers(&here.1);
                for (path, values) in numbers(&there.1) {
                    let what = format!("{config:?} {memory:?}: {path}");
                    // AdamW moves an element by up to the rate, whichever sign rounding has left.
                    let off = values.iter().zip(&expected[&path]).map(|(a, b)| (a - b).abs());
                    let mean = off.clone().sum::<f64>() / values.len() as f64;
                    assert!(mean < 1e-3, "{what}: {mean}");
                }
            }
        }
    }
}

type Saved = (State, State, State, State);

/// Trains on two ranks through the steps, and returns what rank 0 would save.
fn train(
    config: &DataParallelConfig,
    steps: std::ops::Range<usize>,
    saved: Option<&Saved>,
    memory: Memory,
) -> Saved {
    memory
        .spawn(2, |group| {
            let mut training = Fp16::new(&group, config.clone());
            if let Some((model, exchange, moments, scaler)) = saved.cloned() {
                training.parallel.load_state(model).unwrap();
                let optimizer = training.optimizer.as_mut();
                training.parallel.load_exchange_state(exchange, optimizer, moments).unwrap();
                training.scaler.load_state(scaler).unwrap();
            }
            for step in steps.clone() {
                training.step(step, step == BAD_STEP && group.rank() == BAD_RANK);
            }
            let exchange = training.parallel.exchange_state(training.optimizer.as_mut()).unwrap();
            let (model, moments, _) = training.state();
            (model, exchange, moments, training.scaler.state().unwrap())
        })
        .swap_remove(0)
}

#[test]
fn nobody_leaves_a_local_step_that_is_skipped_by_a_vote_of_its_own() {
    let votes = local::spawn(2, |group| {
        let local_sgd = Some(LocalSgd::new(3));
        let mut training = Fp16::new(&group, DataParallelConfig { local_sgd, ..small_buckets() });
        let mut seen = Vec::new();
        for step in 0..6 {
            if group.rank() == 0 {
                training.parallel.vote(1.0);
            }
            seen.push(training.step(step, step == 1 && group.rank() == BAD_RANK).votes);
        }
        seen
    });
    // Both hear of it at the averages, and at the same one.
    assert_eq!(votes[0], votes[1]);
    assert_eq!(votes[0][..3], [0.0; 3]);
    assert!(votes[0].contains(&1.0), "{votes:?}");
}
