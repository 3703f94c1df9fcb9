//! One training loop, timed: images per second of a perceptron (784-256-10) with plain SGD, batches
//! of 64 a rank, and made-up data of MNIST's shape.
//!
//! `burn` is the loop that one writes with Burn alone, `trainer` the same training in Bonfire's
//! `Trainer`. Both have the same loader, model, loss and figures (loss and accuracy, summed on the
//! device and read every 50 steps), so the difference is what Bonfire costs.
//!
//! Prints the figure alone, for `cargo xtask bench` to read. `RAYON_NUM_THREADS` bounds the threads
//! of the arithmetic.
#![allow(clippy::print_stdout, reason = "the figure goes to standard output")]

mod burn_loop;
mod ranks;
mod stopwatch;
mod task;
mod trainer_loop;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

/// What a loop came to.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Times one training loop.
#[derive(Parser)]
#[command(name = "train_loop")]
struct Args {
    #[command(subcommand)]
    mode: Mode,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Mode {
    /// A loop of Burn alone.
    Burn,
    /// Bonfire's `Trainer`, as one rank, or as RANK of a group when that is set.
    Trainer {
        /// Starts this many ranks as processes of their own.
        #[arg(long)]
        ranks: Option<usize>,
    },
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
}

impl Options {
    fn measured(&self) -> Result<Duration> {
        Ok(Duration::try_from_secs_f64(self.seconds)?)
    }
}

fn main() -> ExitCode {
    // For both loops alike: without it, each is fast or slow by chance.
    bonfire::trainer::keep_freed_memory();
    let Args { mode, options } = Args::parse();
    let figure = match mode {
        Mode::Burn => burn_loop::run(&options).map(Some),
        Mode::Trainer { ranks: Some(ranks) } => ranks::run(ranks, &options).map(|()| None),
        Mode::Trainer { ranks: None } => trainer_loop::run(&options),
    };
    match figure {
        Ok(Some(images_per_s)) => println!("{images_per_s:.1}"),
        // Rank 0 has said it, or will.
        Ok(None) => {}
        Err(error) => {
            eprintln!("train_loop: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
