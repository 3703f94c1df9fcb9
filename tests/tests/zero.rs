//! Ranks that share the optimizer: memory, and checkpoints that fit any number of ranks.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, local};
use bonfire_models::Mlp;
use bonfire_nn::{ImageClassifier, cross_entropy};
use bonfire_parallel::{
    AdamWConfig, BurnOptimizer, DataParallel, DataParallelConfig, FlatOptimizer, ZeroStage,
};
use bonfire_tensor::state::{State, Stateful};
use bonfire_tests::Samples;
use bonfire_tests::training::mlp;
use burn::optim::AdamWConfig as BurnAdamWConfig;
use burn::tensor::Device;
use std::sync::Mutex;

const HIDDEN: usize = 64;
const BATCH: usize = 4;

fn begin(group: &ProcessGroup, zero_stage: ZeroStage, device: &Device) -> DataParallel<Mlp> {
    let config = DataParallelConfig {
        zero_stage,
        first_bucket_mb: 0.001,
        bucket_cap_mb: 0.004,
        ..DataParallelConfig::default()
    };
    DataParallel::new(mlp(HIDDEN, 0, device), group, config).unwrap()
}

fn run(
    group: &ProcessGroup,
    parallel: &mut DataParallel<Mlp>,
    optimizer: &mut dyn FlatOptimizer,
    steps: std::ops::Range<usize>,
    device: &Device,
) {
    for number in steps {
        // Twelve samples, whatever the number of ranks.
        let len = 3 * BATCH / group.world_size();
        let first = number * 3 * BATCH + group.rank() * len;
        let samples = Samples::synthetic(first..first + len);
        let logits = parallel.replica().unwrap().forward(samples.images(device));
        parallel.backward(cross_entropy(logits, samples.targets(device))).unwrap();
        parallel.step(optimizer, 0.01).unwrap();
    }
}

#[test]
fn optimizer_memory_is_divided_by_the_ranks() {
    for stage in [ZeroStage::Optimizer, ZeroStage::Gradients] {
        local::spawn(4, |group| {
            let device = Device::flex().autodiff();
            let memory = |stage| {
                let mut parallel = begin(&group, stage, &device);
                let mut optimizer = AdamWConfig::new().init().unwrap();
                for number in 0..3 {
                    let samples = Samples::synthetic(number * BATCH..(number + 1) * BATCH);
                    let logits = parallel.replica().unwrap().forward(samples.images(&device));
                    parallel.backward(cross_entropy(logits, samples.targets(&device))).unwrap();
                    parallel.synchronize().unwrap();
                    if number < 2 {
                        parallel.step(&mut optimizer, 0.01).unwrap();
                    }
                }
                parallel.memory(&optimizer)
            };
            let (whole, shared) = (memory(ZeroStage::Off), memory(stage));
            let share = shared.optimizer as f64 / whole.optimizer as f64;
            assert!((0.25..0.3).contains(&share), "{share}: {whole:?} {shared:?}");
            assert!(whole.optimizer >= 2 * whole.parameters, "{whole:?}");
        });
    }
}

#[test]
fn gradient_memory_is_divided_too_and_stays_constant() {
    local::spawn(4, |group| {
        let device = Device::flex().autodiff();
        // Parameters that have a bucket of their own, and others.
        let config = DataParallelConfig { zero_stage: ZeroStage::Gradients, ..Default::default() };
        let mut parallel = DataParallel::new(mlp(8192, 0, &device), &group, config).unwrap();
        let mut optimizer = AdamWConfig::new().init().unwrap();
        let mut held = Vec::new();
        for number in 0..5 {
            let samples = Samples::synthetic(number * BATCH..(number + 1) * BATCH);
            let logits = parallel.replica().unwrap().forward(samples.images(&device));
            parallel.backward(cross_entropy(logits, samples.targets(&device))).unwrap();
            parallel.step(&mut optimizer, 0.01).unwrap();
            held.push(parallel.memory(&optimizer).gradients);
        }
        let whole = parallel.memory(&optimizer).parameters;
        // Between steps there is the memory of a shared bucket at most.
        assert!(
            held[1..].iter().all(|bytes| *bytes == held[1] && *bytes < whole * 2 / 3),
            "{held:?}"
        );
    });
}

type Saved = Option<(State, State, State)>;

/// Trains on `world` ranks, from `saved` if given; returns the checkpoint that rank 0 would write
/// and the final parameters.
fn train(
    world: usize,
    stage: ZeroStage,
    steps: std::ops::Range<usize>,
    saved: &Saved,
    make: fn() -> Box<dyn FlatOptimizer>,
) -> (Saved, State) {
    let out = Mutex::new(None);
    local::spawn(world, |group| {
        let device = Device::flex().autodiff();
        let mut parallel = begin(&group, stage, &device);
        let mut optimizer = make();
        if let Some((model, exchange, moments)) = saved.clone() {
            parallel.load_state(model).unwrap();
            parallel.load_exchange_state(exchange, optimizer.as_mut(), moments).unwrap();
        }
        run(&group, &mut parallel, optimizer.as_mut(), steps.clone(), &device);
        let moments = parallel.optimizer_state(optimizer.as_mut()).state().unwrap();
        let exchange = parallel.exchange_state(optimizer.as_mut()).unwrap();
        if group.rank() == 0 {
            let model = parallel.state().unwrap();
            *out.lock().unwrap() = Some(((model.clone(), exchange, moments), model));
        }
    });
    let (saved, model) = out.into_inner().unwrap().unwrap();
    (Some(saved), model)
}

fn adamw() -> Box<dyn FlatOptimizer> {
    Box::new(AdamWConfig::new().init().unwrap())
}

fn burn_adamw() -> Box<dyn FlatOptimizer> {
    Box::new(BurnOptimizer::new(BurnAdamWConfig::new().build()))
}

#[test]
fn a_checkpoint_loads_at_any_stage_and_number_of_ranks() {
    for make in [adamw as fn() -> Box<dyn FlatOptimizer>, burn_adamw] {
        let (_, expected) = train(1, ZeroStage::Off, 0..6, &None, make);
        for stage in [ZeroStage::Optimizer, ZeroStage::Gradients] {
            let (saved, _) = train(3, stage, 0..3, &None, make);
            for (world, stage) in [
                (3, stage),
                (2, ZeroStage::Optimizer),
                (2, ZeroStage::Gradients),
                (1, ZeroStage::Off),
                (2, ZeroStage::Off),
            ] {
                let (_, got) = train(world, stage, 3..6, &saved, make);
                assert_close(&got, &expected, &format!("{world} ranks, {stage:?}"));
            }
        }
        // And from whole state into parts.
        let (saved, _) = train(2, ZeroStage::Off, 0..3, &None, make);
        let (_, got) = train(3, ZeroStage::Optimizer, 3..6, &saved, make);
        assert_close(&got, &expected, "from whole state");
    }
}

#[test]
fn a_continuation_on_as_many_ranks_has_the_same_bits() {
    for stage in [ZeroStage::Optimizer, ZeroStage::Gradients] {
        let (_, expected) = train(3, stage, 0..6, &None, adamw);
        let (saved, _) = train(3, stage, 0..3, &None, adamw);
        let (_, got) = train(3, stage, 3..6, &saved, adamw);
        assert_eq!(got, expected, "{stage:?}");
    }
}

fn assert_close(got: &State, expected: &State, what: &str) {
    for (path, tensor) in &expected.tensors {
        let (expected, got) = (tensor.data.as_slice::<f32>().unwrap(), &got.tensors[path].data);
        for (a, b) in got.as_slice::<f32>().unwrap().iter().zip(expected) {
            // AdamW turns the sign of a gradient near zero into a whole step.
            assert!((a - b).abs() < 2e-4, "{what}: {path}: {a} {b}");
        }
    }
}
