//! The project's chores, as one program: `cargo xtask --help` lists them.
#![allow(clippy::print_stdout, reason = "a program for people at a terminal")]

mod bench;
mod bonfire;
mod cargo;
mod check;
mod checkpoints;
mod collectives;
mod gpu;
mod layers;
mod loader;
mod outputs;
mod overhead;
mod pairs;
mod record;
mod soak;
mod train_loop;

use clap::Parser;
use std::error::Error;
use std::process::ExitCode;

/// What a chore came to.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Chores of the project, in the order in which they are needed.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Checks format, lints and documentation, and runs all tests.
    Check,
    /// Measures training loops side by side, and the start of a run.
    Bench(bench::Args),
    /// Measures all-reduces beside those of PyTorch's gloo and of an MPI library.
    BenchCollectives(collectives::Args),
    /// Measures what the exchange of gradients costs two ranks, beside PyTorch's
    /// `DistributedDataParallel`.
    BenchOverhead(overhead::Args),
    /// Measures batch normalisation and the look for overflows in mixed precision.
    BenchLayers(layers::Args),
    /// Measures what a checkpoint costs a step, and the start of a resumed run.
    BenchCheckpoints(checkpoints::Args),
    /// Measures what the outputs and the profiler of a run cost, beside a loop written by hand.
    BenchOutputs(outputs::Args),
    /// Measures the loader of images beside PyTorch's, and how long a training step waits for it.
    BenchLoader(loader::Args),
    /// Makes a folder that checks Bonfire on a machine with a GPU, or records what it found there.
    Gpu(gpu::Args),
    /// Trains a recipe, or kills ranks, again and again, and checks that it comes out right.
    #[command(subcommand)]
    Soak(soak::Soak),
}

fn main() -> ExitCode {
    let result = match Chore::parse() {
        Chore::Check => check::run_all(),
        Chore::Bench(args) => bench::run(&args),
        Chore::BenchCollectives(args) => collectives::run(&args),
        Chore::BenchOverhead(args) => overhead::run(&args),
        Chore::BenchLayers(args) => layers::run(&args),
        Chore::BenchCheckpoints(args) => checkpoints::run(&args),
        Chore::BenchOutputs(args) => outputs::run(&args),
        Chore::BenchLoader(args) => loader::run(&args),
        Chore::Gpu(args) => gpu::start(&args),
        Chore::Soak(soak) => soak::run(&soak),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
