//! Training loops, timed or weighed, for `cargo xtask bench`, `bench-overhead` and `soak` to read.
//!
//! - `burn` is the loop that one writes with Burn alone, `trainer` the same training in Bonfire's
//!   `Trainer`: images per second of a perceptron (784-256-10) or a LeNet with plain SGD, batches of 64 a rank,
//!   and made-up data of MNIST's shape. Both have the same loader, model, loss and figures (loss and
//!   accuracy, summed on the device and read every 50 steps), so the difference is what Bonfire costs.
//! - `compare` runs two of these in one process, in turns of some milliseconds.
//! - `parallel` is the loop that one writes over `DataParallel`, of three networks, with and without
//!   exchange of gradients.
//! - `memory` is a large perceptron with AdamW, and `growth` a small one for thousands of steps: what
//!   their processes weigh.
//!
//! Prints the figures alone: one number for the first two, a line of JSON for the others.
//! `RAYON_NUM_THREADS` bounds the threads of the arithmetic.
#![allow(clippy::print_stdout, reason = "the figures go to standard output")]

mod burn_loop;
mod compare;
mod growth;
mod memory;
mod networks;
mod parallel_loop;
mod ranks;
mod resident;
mod stopwatch;
mod task;
mod trainer_loop;
mod turns;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stopwatch::Stopwatch;

/// What a loop came to.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures one training loop.
#[derive(Parser)]
#[command(name = "train_loop")]
struct Args {
    #[command(subcommand)]
    mode: Mode,
    #[command(flatten)]
    options: Options,
    /// Starts this many ranks as processes of their own; without it the process is alone, or RANK of
    /// a group when that is set.
    #[arg(long, global = true)]
    ranks: Option<usize>,
}

#[derive(Subcommand)]
enum Mode {
    /// A loop of Burn alone; takes no ranks.
    Burn,
    /// Bonfire's `Trainer`.
    Trainer(trainer_loop::Args),
    /// Two loops in turns.
    Compare(compare::Args),
    /// A loop over `DataParallel`.
    Parallel(parallel_loop::Args),
    /// The memory of a large perceptron, its optimizer shared or not.
    Memory(memory::Args),
    /// The memory of a small perceptron as time goes by.
    Growth(growth::Args),
}

/// How to measure.
#[derive(clap::Args, Clone, Copy)]
struct Options {
    /// Seconds to measure, after a warm-up of one second.
    #[arg(long, default_value_t = 4.0, global = true)]
    seconds: f64,
    /// Threads that load batches ahead; 0 loads on the training thread.
    #[arg(long, default_value_t = 0, global = true)]
    workers: usize,
    /// What `burn` and `trainer` train.
    #[arg(long, value_enum, default_value_t = task::Network::Mlp, global = true)]
    network: task::Network,
}

impl Options {
    fn measured(&self) -> Result<Duration> {
        Ok(Duration::try_from_secs_f64(self.seconds)?)
    }
}

impl Args {
    /// Runs the loop; rank 0 returns what it has to say.
    fn run(&self) -> Result<Option<String>> {
        if let Some(ranks) = self.ranks
            && !ranks::is_rank()
        {
            return ranks::start(ranks).map(|()| None);
        }
        let options = &self.options;
        match &self.mode {
            Mode::Burn => {
                let mut stopwatch = Stopwatch::new(options.measured()?);
                burn_loop::run(options, &mut stopwatch)?;
                Ok(Some(number(stopwatch.images_per_s())))
            }
            Mode::Trainer(args) => time_trainer(*args, options),
            Mode::Compare(args) => compare::run(*args, options),
            Mode::Parallel(args) => parallel_loop::run(args, options.measured()?),
            Mode::Memory(args) => memory::run(args),
            Mode::Growth(args) => growth::run(args),
        }
    }
}

/// Times the `Trainer`; rank 0 says how many images per second all ranks have trained on.
fn time_trainer(args: trainer_loop::Args, options: &Options) -> Result<Option<String>> {
    let group = ranks::world()?;
    let stopwatch = Arc::new(Mutex::new(Stopwatch::new(options.measured()?)));
    trainer_loop::run(args, options, &group, || stopwatch.clone())?;
    let images_per_s = stopwatch.lock().unwrap_or_else(PoisonError::into_inner).images_per_s();
    Ok((group.rank() == 0).then(|| number(images_per_s)))
}

fn number(images_per_s: f64) -> String {
    format!("{images_per_s:.1}")
}

fn main() -> ExitCode {
    // For all loops alike: without it, each is fast or slow by chance.
    bonfire::trainer::keep_freed_memory();
    match Args::parse().run() {
        Ok(Some(figures)) => println!("{figures}"),
        // Rank 0 has said it, or will.
        Ok(None) => {}
        Err(error) => {
            eprintln!("train_loop: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
