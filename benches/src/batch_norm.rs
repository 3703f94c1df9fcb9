//! Times forward and backward pass of a batch normalisation of 64x64x32x32 values in f32: Burn's own,
//! Bonfire's, and Bonfire's synchronised one over a group of one rank.
//!
//! The three take turns, so that what else the machine does hits all of them. Prints the median of
//! each in milliseconds, as JSON. `RAYON_NUM_THREADS` bounds the threads of the arithmetic.
#![allow(clippy::print_stdout, reason = "the figures go to standard output")]

use bonfire::comm::ProcessGroup;
use bonfire::nn::{SyncBatchNormConfig, convert_sync_batchnorm};
use burn::nn::BatchNormConfig;
use burn::tensor::{Device, Distribution, Tensor};
use clap::Parser;
use std::error::Error;
use std::time::Instant;

const SHAPE: [usize; 4] = [64, 64, 32, 32];

/// Times batch normalisations.
#[derive(Parser)]
#[command(name = "batch_norm")]
struct Args {
    /// Passes of each layer, after one that is not counted.
    #[arg(long, default_value_t = 60)]
    rounds: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    bonfire::trainer::keep_freed_memory();
    let device = Device::flex().autodiff();
    let channels = SHAPE[1];
    let burn = BatchNormConfig::new(channels).init(&device);
    let own = SyncBatchNormConfig::new(channels).init(&device).without_sync();
    let sync = convert_sync_batchnorm(own.clone(), &ProcessGroup::single())?;
    let layers: [(&str, &dyn Fn(Tensor<4>) -> Tensor<4>); 3] = [
        ("burn_ms", &|x| burn.forward(x)),
        ("bonfire_ms", &|x| own.forward(x)),
        ("synchronized_ms", &|x| sync.forward(x)),
    ];

    let x = Tensor::<4>::random(SHAPE, Distribution::Default, &device).require_grad();
    let weights = Tensor::<4>::random(SHAPE, Distribution::Default, &device);
    let mut times = [const { Vec::new() }; 3];
    for round in 0..=args.rounds {
        for turn in 0..layers.len() {
            // Every one is first, second and third equally often.
            let index = (round + turn) % layers.len();
            let milliseconds = pass(layers[index].1, &x, &weights);
            if round > 0 {
                times[index].push(milliseconds);
            }
        }
    }
    let mut figures = serde_json::Map::new();
    for ((name, _), times) in layers.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        figures.insert((*name).to_string(), times[times.len() / 2].into());
    }
    println!("{}", serde_json::Value::Object(figures));
    Ok(())
}

/// Milliseconds of a forward and backward pass; the loss's own part is not counted.
fn pass(forward: &dyn Fn(Tensor<4>) -> Tensor<4>, x: &Tensor<4>, weights: &Tensor<4>) -> f64 {
    let alone = Instant::now();
    drop((x.clone() * weights.clone()).sum().backward());
    let loss = alone.elapsed();
    let start = Instant::now();
    drop((forward(x.clone()) * weights.clone()).sum().backward());
    start.elapsed().saturating_sub(loss).as_secs_f64() * 1e3
}
