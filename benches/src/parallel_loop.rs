//! The loop that one writes over `DataParallel`, as a whole and in its parts.

use crate::networks::{Batches, Cnn, NUM_CLASSES, Network};
use crate::{Result, ranks};
use bonfire::comm::{ProcessGroup, ReduceOp};
use bonfire::models::{MlpConfig, ResNetConfig};
use bonfire::nn::{ImageClassifier, cross_entropy};
use bonfire::parallel::{BucketLayout, DataParallel, DataParallelConfig, Sgd, SgdConfig};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const SEED: u64 = 1;
const LEARNING_RATE: f64 = 0.01;
/// The first step lays out the buckets anew.
const WARM_UP_STEPS: usize = 2;
const WARM_UP: Duration = Duration::from_secs(1);
/// Of a network so slow that the time would be over earlier.
const LEAST_STEPS: usize = 3;
const ALL_REDUCES: usize = 20;

/// What to train, and how.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What is trained.
    #[arg(long, value_enum)]
    network: Network,
    /// Trains every rank by itself, at the same time as the others.
    #[arg(long)]
    alone: bool,
    /// Trains every rank by itself, but no rank begins a step before all have done the last: what it
    /// costs to stay together, whatever is exchanged.
    #[arg(long, conflicts_with = "alone")]
    in_step: bool,
    /// Sends the same buckets off only when the backward pass has ended.
    #[arg(long)]
    no_overlap: bool,
}

/// Measures; returns [`Figures`] in JSON on rank 0.
pub(crate) fn run(args: &Args, measured: Duration) -> Result<Option<String>> {
    let world = ranks::world()?;
    let device = Device::flex();
    let image = args.network.image();
    device.seed(SEED);
    let trained = device.clone().autodiff();
    let bench = Bench { world, args, measured, device };
    let figures = match args.network {
        Network::Mlp => {
            let config = MlpConfig { hidden: vec![256] };
            bench.measure(config.init(image, NUM_CLASSES, &trained)?)
        }
        Network::Cnn => bench.measure(Cnn::new(&trained)),
        Network::Resnet18 => {
            // As torchvision has it unless told otherwise.
            let config = ResNetConfig { zero_init_residual: false, ..ResNetConfig::default() };
            bench.measure(config.init(image, NUM_CLASSES, &trained)?)
        }
    }?;
    let text = serde_json::to_string(&figures)?;
    Ok((bench.world.rank() == 0).then_some(text))
}

/// Figures over all ranks.
#[derive(Serialize)]
struct Figures {
    /// Sum over ranks.
    images_per_s: f64,
    step_ms: f64,
    /// How long the rank that ends its backward pass last waits for gradients: the least wait of each
    /// step, median over steps.
    last_wait_ms: f64,
    /// Mean over ranks and steps: with the time in which a rank waits for a slower one.
    mean_wait_ms: f64,
    /// Of rank 0.
    bytes_per_step: f64,
    /// The buckets all-reduced one after the other with nothing else to do, median; none if ranks
    /// exchange nothing.
    all_reduce_ms: Option<f64>,
}

/// Figures of one rank.
#[derive(Serialize, Deserialize)]
struct RankFigures {
    images_per_s: f64,
    step_ms: f64,
    bytes_per_step: f64,
    /// Of each step.
    waits_ms: Vec<f64>,
    /// Of each repetition.
    all_reduces_ms: Vec<f64>,
}

struct Bench<'a> {
    world: ProcessGroup,
    args: &'a Args,
    measured: Duration,
    device: Device,
}

impl Bench<'_> {
    fn measure<M: ImageClassifier>(&self, model: M) -> Result<Figures> {
        let apart = self.args.alone || self.args.in_step;
        let group = if apart { ProcessGroup::single() } else { self.world.clone() };
        let mut training = Training::new(model, &group, self.args, &self.device)?;
        training.together = self.args.in_step.then(|| self.world.clone());
        training.train(WARM_UP, WARM_UP_STEPS)?;

        let sent = training.parallel.bytes_sent();
        self.world.barrier()?;
        let start = Instant::now();
        let waits_ms = training.train(self.measured, LEAST_STEPS)?;
        let seconds = start.elapsed().as_secs_f64();
        let sent = training.parallel.bytes_sent() - sent;

        if self.args.alone {
            self.stay_busy(&mut training)?;
        }
        let all_reduces_ms = match group.world_size() {
            1 => Vec::new(),
            _ => all_reduces(training.parallel.layout(), &group)?,
        };
        let steps = waits_ms.len() as f64;
        let own = RankFigures {
            images_per_s: steps * self.args.network.batch_size() as f64 / seconds,
            step_ms: seconds * 1e3 / steps,
            bytes_per_step: sent as f64 / steps,
            waits_ms,
            all_reduces_ms,
        };
        Ok(Figures::of(&ranks::gather(&self.world, &own)?))
    }

    /// Goes on until all ranks have measured, so that the machine is as busy for the last as it was
    /// for the first.
    fn stay_busy<M: ImageClassifier>(&self, training: &mut Training<M>) -> Result<()> {
        let all = self.world.start_barrier()?;
        while !all.is_done() {
            training.step(false)?;
        }
        all.wait()?;
        Ok(())
    }
}

/// A model in training.
struct Training<M> {
    parallel: DataParallel<M>,
    optimizer: Sgd,
    batches: Batches,
    overlap: bool,
    /// The ranks to keep step with, if gradients do not.
    together: Option<ProcessGroup>,
    /// Whether this rank says when to stop.
    decides: bool,
}

impl<M: ImageClassifier> Training<M> {
    fn new(model: M, group: &ProcessGroup, args: &Args, device: &Device) -> Result<Self> {
        Ok(Self {
            parallel: DataParallel::new(model, group, DataParallelConfig::default())?,
            optimizer: SgdConfig::new().init()?,
            batches: Batches::new(args.network.image(), args.network.batch_size(), device),
            overlap: !args.no_overlap,
            together: None,
            decides: group.rank() == 0,
        })
    }

    /// Trains for `time` and at least `steps` steps; returns how long each waited for gradients, in
    /// milliseconds.
    fn train(&mut self, time: Duration, steps: usize) -> Result<Vec<f64>> {
        let start = Instant::now();
        let mut waits = Vec::new();
        loop {
            let last = start.elapsed() >= time && waits.len() + 1 >= steps;
            let before = self.parallel.comm_wait();
            let over = self.step(last)?;
            waits.push((self.parallel.comm_wait() - before).as_secs_f64() * 1e3);
            if over {
                return Ok(waits);
            }
        }
    }

    /// Takes a step; returns whether it was the last one, which the deciding rank says with `last`.
    fn step(&mut self, last: bool) -> Result<bool> {
        let mut vote = [if last && self.decides { 1.0 } else { 0.0 }];
        self.parallel.vote(vote[0]);
        let (images, targets) = self.batches.next();
        let loss = cross_entropy(self.parallel.replica()?.forward(images), targets);
        if self.overlap {
            self.parallel.backward(loss)?;
        } else {
            self.parallel.no_sync(|parallel| parallel.backward(loss))?;
            self.parallel.backward_without_samples()?;
        }
        if let Some(world) = &self.together {
            world.all_reduce(&mut vote, ReduceOp::Max)?;
        }
        let report = self.parallel.step(&mut self.optimizer, LEARNING_RATE)?;
        Ok(report.votes + vote[0] > 0.0)
    }
}

/// Milliseconds of reducing all buckets one after the other, for each repetition.
fn all_reduces(layout: &BucketLayout, group: &ProcessGroup) -> Result<Vec<f64>> {
    let mut buckets: Vec<Vec<f32>> =
        layout.buckets().iter().map(|bucket| vec![0.0; bucket.num_elements()]).collect();
    let mut times = Vec::with_capacity(ALL_REDUCES);
    for repetition in 0..=ALL_REDUCES {
        group.barrier()?;
        let start = Instant::now();
        for bucket in &mut buckets {
            group.all_reduce(bucket, ReduceOp::Mean)?;
        }
        // The first touches the memory.
        if repetition > 0 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times)
}

impl Figures {
    fn of(ranks: &[RankFigures]) -> Self {
        let waits: Vec<&[f64]> = ranks.iter().map(|rank| rank.waits_ms.as_slice()).collect();
        let times: Vec<&[f64]> = ranks.iter().map(|rank| rank.all_reduces_ms.as_slice()).collect();
        let all: Vec<f64> = waits.concat();
        Self {
            images_per_s: ranks.iter().map(|rank| rank.images_per_s).sum(),
            step_ms: ranks.first().map_or(0.0, |rank| rank.step_ms),
            last_wait_ms: median(across(&waits, f64::min)).unwrap_or(0.0),
            mean_wait_ms: all.iter().sum::<f64>() / all.len().max(1) as f64,
            bytes_per_step: ranks.first().map_or(0.0, |rank| rank.bytes_per_step),
            all_reduce_ms: median(across(&times, f64::max)),
        }
    }
}

/// Takes the same figure of all ranks together.
fn across(ranks: &[&[f64]], combine: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let count = ranks.iter().map(|rank| rank.len()).min().unwrap_or(0);
    let of_all = |index: usize| ranks.iter().map(move |rank| rank[index]);
    (0..count).filter_map(|index| of_all(index).reduce(&combine)).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_those_of_the_rank_that_is_last_in_each_step() {
        let rank = |waits: &[f64], all_reduces: &[f64]| RankFigures {
            images_per_s: 10.0,
            step_ms: 5.0,
            bytes_per_step: 8.0,
            waits_ms: waits.to_vec(),
            all_reduces_ms: all_reduces.to_vec(),
        };
        let slow_then_fast = rank(&[1.0, 9.0, 2.0], &[3.0, 4.0, 3.0]);
        let fast_then_slow = rank(&[7.0, 3.0, 2.0], &[5.0, 3.0, 1.0]);
        let figures = Figures::of(&[slow_then_fast, fast_then_slow]);
        assert_eq!((figures.last_wait_ms, figures.mean_wait_ms), (2.0, 4.0));
        assert_eq!((figures.images_per_s, figures.all_reduce_ms), (20.0, Some(4.0)));
        assert_eq!(Figures::of(&[rank(&[0.0], &[])]).all_reduce_ms, None);
    }
}
