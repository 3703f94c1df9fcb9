//! What the loss scaler's look at the gradients costs: the pass that finds overflow and norm of 11.2 million
//! gradients (ResNet-18) in buckets of 25 MiB, beside the optimizer's update of as many parameters.
//!
//! Prints the medians in milliseconds, as JSON. The passes take turns, and every one
//! reads memory that the others have driven out of the caches meanwhile, as in training.
#![allow(clippy::print_stdout, reason = "the figures go to standard output")]

use bonfire::amp::{GradientStats, NormType};
use bonfire::comm::HostBuffer;
use bonfire::parallel::{
    AdamWConfig, FlatOptimizer, FlatUpdate, ParallelError, Segment, SgdConfig,
};
use burn::tensor::{Device, Tensor, TensorData};
use std::hint::black_box;
use std::time::{Duration, Instant};

const PARAMETERS: usize = 11_200_000;
const BUCKET: usize = 25 * 1024 * 1024 / 4;
const ROUNDS: usize = 31;

/// Flat parameters, gradients and an optimizer.
struct Update {
    optimizer: Box<dyn FlatOptimizer>,
    parameters: Vec<Tensor<1>>,
    segments: Vec<Vec<Segment>>,
}

impl Update {
    fn new(optimizer: Box<dyn FlatOptimizer>) -> Self {
        let lens = lens();
        let parameters = lens.iter().map(|len| flat(*len, 0.1)).collect();
        let segment = |len: usize| Segment {
            path: "weight".to_string(),
            shape: vec![len],
            range: 0..len,
            parameter: 0,
        };
        let segments = lens.iter().map(|len| vec![segment(*len)]).collect();
        Self { optimizer, parameters, segments }
    }

    /// Times an update.
    fn step(&mut self) -> Result<Duration, ParallelError> {
        let gradients: Vec<Tensor<1>> = lens().iter().map(|len| flat(*len, 1e-3)).collect();
        let start = Instant::now();
        for (bucket, gradients) in gradients.into_iter().enumerate() {
            let update = FlatUpdate {
                parameters: &self.parameters[bucket],
                gradients,
                gradient_scale: 1.0 / 65536.0,
                segments: &self.segments[bucket],
                rates: &[Some(0.01)],
                decays: &[None],
                only_if: None,
            };
            self.parameters[bucket] = self.optimizer.step(bucket, update)?;
        }
        Ok(start.elapsed())
    }
}

fn lens() -> Vec<usize> {
    let mut lens = vec![BUCKET; PARAMETERS / BUCKET];
    lens.push(PARAMETERS % BUCKET);
    lens
}

fn flat(len: usize, value: f32) -> Tensor<1> {
    Tensor::from_data(TensorData::new(vec![value; len], [len]), &Device::flex())
}

fn pass(gradients: &[HostBuffer], norm_type: NormType) -> Duration {
    let start = Instant::now();
    let all = gradients.iter().fold(GradientStats::none(norm_type), |stats, bucket| {
        stats.and(GradientStats::of_host(bucket, 0..bucket.len(), norm_type))
    });
    black_box(all.norm());
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn main() -> Result<(), ParallelError> {
    bonfire::trainer::keep_freed_memory();
    let gradients: Vec<HostBuffer> =
        lens().iter().map(|len| HostBuffer::from(vec![65.0f32; *len])).collect();
    let mut sgd = Update::new(Box::new(SgdConfig::new().with_momentum(0.9).init()?));
    let mut adamw = Update::new(Box::new(AdamWConfig::new().init()?));
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(sgd.step()?);
        times[1].push(pass(&gradients, NormType::Two));
        times[2].push(adamw.step()?);
        times[3].push(pass(&gradients, NormType::Infinity));
    }
    let [sgd, two, adamw, infinity] = times.map(median);
    let figures = serde_json::json!({
        "sgd_ms": sgd,
        "adamw_ms": adamw,
        "two_norm_ms": two,
        "infinity_norm_ms": infinity,
    });
    println!("{figures}");
    Ok(())
}
