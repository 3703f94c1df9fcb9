//! Training with compressed gradients: equal replicas, counted bytes, exact continuations.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, local};
use bonfire_models::Mlp;
use bonfire_nn::{ImageClassifier, cross_entropy};
use bonfire_parallel::{Compression, DataParallel, DataParallelConfig, FlatOptimizer};
use bonfire_tensor::state::{State, Stateful};
use bonfire_tests::training::{HIDDEN, mlp};
use bonfire_tests::{Rule, Samples};
use burn::tensor::Device;

const BATCH: usize = 4;

fn every_hook() -> [Compression; 6] {
    [
        Compression::Fp16,
        Compression::Bf16,
        Compression::int8(),
        Compression::fp8(),
        Compression::TopK { ratio: 0.1 },
        Compression::PowerSgd {
            matrix_approximation_rank: 1,
            min_compression_rate: 1.0,
            start_iter: 2,
            use_error_feedback: true,
            warm_start: true,
            seed: 3,
        },
    ]
}

fn begin(group: &ProcessGroup, compression: Compression, device: &Device) -> DataParallel<Mlp> {
    let config = DataParallelConfig {
        compression,
        first_bucket_mb: 0.001,
        bucket_cap_mb: 0.001,
        ..DataParallelConfig::default()
    };
    DataParallel::new(mlp(HIDDEN, 0, device), group, config).unwrap()
}

fn step(
    parallel: &mut DataParallel<Mlp>,
    optimizer: &mut dyn FlatOptimizer,
    rank: usize,
    number: usize,
    device: &Device,
) -> f32 {
    let first = (number * 4 + rank) * BATCH;
    let samples = Samples::synthetic(first..first + BATCH);
    let logits = parallel.replica().unwrap().forward(samples.images(device));
    let loss = cross_entropy(logits, samples.targets(device));
    let value = loss.clone().without_autodiff().into_scalar();
    parallel.backward(loss).unwrap();
    parallel.step(optimizer, 0.05).unwrap();
    value
}

#[test]
fn replicas_stay_equal_and_losses_fall() {
    for compression in every_hook() {
        for world in [2, 3] {
            local::spawn(world, |group| {
                let device = Device::flex().autodiff();
                let mut parallel = begin(&group, compression, &device);
                let mut optimizer = Rule::Sgd.optimizer();
                let mut losses = Vec::new();
                for number in 0..60 {
                    let rank = group.rank();
                    // The same four batches again and again.
                    losses.push(step(&mut parallel, optimizer.as_mut(), rank, number % 4, &device));
                    parallel.check_replicas().unwrap();
                }
                let (start, end) =
                    (losses[..4].iter().sum::<f32>(), losses[56..].iter().sum::<f32>());
                assert!(end < 0.7 * start, "{compression:?}: {start} -> {end}");
            });
        }
    }
}

#[test]
fn an_interrupted_run_goes_on_bit_by_bit() {
    for compression in every_hook() {
        local::spawn(2, |group| {
            let device = Device::flex().autodiff();
            let run = |parallel: &mut DataParallel<Mlp>,
                       optimizer: &mut dyn FlatOptimizer,
                       steps: std::ops::Range<usize>| {
                for number in steps {
                    step(parallel, optimizer, group.rank(), number, &device);
                }
            };
            let mut parallel = begin(&group, compression, &device);
            let mut optimizer = Rule::AdamW.optimizer();
            run(&mut parallel, optimizer.as_mut(), 0..6);
            let saved = save(&group, &mut parallel, optimizer.as_mut());
            run(&mut parallel, optimizer.as_mut(), 6..10);

            let mut again = begin(&group, compression, &device);
            let mut optimizer = Rule::AdamW.optimizer();
            restore(&mut again, optimizer.as_mut(), saved);
            assert_eq!(again.steps(), 6);
            run(&mut again, optimizer.as_mut(), 6..10);
            assert_eq!(again.state().unwrap(), parallel.state().unwrap(), "{compression:?}");
        });
    }
}

/// What rank 0 would write into a checkpoint: model, exchange, optimizer.
fn save(
    group: &ProcessGroup,
    parallel: &mut DataParallel<Mlp>,
    optimizer: &mut dyn FlatOptimizer,
) -> [State; 3] {
    let exchange = parallel.exchange_state(optimizer).unwrap();
    let states =
        [parallel.state().unwrap(), exchange, parallel.optimizer_state(optimizer).state().unwrap()];
    states.map(|state| {
        State::from_bytes(&group.broadcast_bytes(state.to_bytes(), 0).unwrap()).unwrap()
    })
}

fn restore(
    parallel: &mut DataParallel<Mlp>,
    optimizer: &mut dyn FlatOptimizer,
    [model, exchange, moments]: [State; 3],
) {
    parallel.load_state(model).unwrap();
    parallel.load_exchange_state(exchange, optimizer, moments).unwrap();
}
