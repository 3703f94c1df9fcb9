//! Checks Bonfire on a machine with a GPU, in minutes, and writes down what it found.
//!
//! `gpu_check all` runs every section as a process of its own, so that one that fails, hangs or takes
//! the GPU down leaves the others their results: conformance of the collectives, equality with the
//! CPU, throughput beside PyTorch's, and the time of each kernel. With `--device cpu` the same code
//! runs on the CPU, in small: that checks the check.
#![allow(clippy::print_stdout, reason = "the findings go to standard output")]

mod all;
mod conformance;
mod equality;
mod kernels;
mod model;
mod places;
mod ranks;
mod record;
mod throughput;

use clap::{Parser, Subcommand, ValueEnum};
use serde_json::Value;
use std::error::Error;
use std::process::ExitCode;

/// What a section came to.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Checks Bonfire on a machine with a GPU.
#[derive(Parser)]
#[command(name = "gpu_check", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs all sections, each in a process of its own, and writes record.json and record.md.
    All(all::Args),
    /// Runs one section, and prints what it found as a line of JSON.
    Section(SectionArgs),
}

/// What to check, and where.
#[derive(clap::Args, Clone)]
struct SectionArgs {
    /// The section.
    #[arg(value_enum)]
    name: Section,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = Place::Cuda)]
    device: Place,
    /// Type that forward and backward passes compute in (throughput, kernels).
    #[arg(long, value_enum, default_value_t = Precision::Bf16)]
    precision: Precision,
    /// Images in a batch (throughput, kernels).
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// Rows and columns of an image (throughput, kernels).
    #[arg(long, default_value_t = 224)]
    image: usize,
    /// Seconds to measure, at most (throughput).
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// What is there: driver, GPUs, libraries.
    Environment,
    /// Every collective on one rank.
    ConformanceOne,
    /// Every collective between two ranks that share a GPU.
    ConformanceTwo,
    /// Gradients and the course of the loss on one rank, against the CPU's.
    EqualityOne,
    /// Training on two ranks that share a GPU, in several ways, against one rank on the CPU.
    EqualityTwo,
    /// The same, by way of host memory.
    EqualityStaged,
    /// Images per second of ResNet-50 on made-up data.
    Throughput,
    /// Time of each kernel in a step of ResNet-50.
    Kernels,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Place {
    Cuda,
    Cpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Precision {
    F32,
    Bf16,
    Fp16,
}

/// The name by which an argument is given.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn section(args: &SectionArgs) -> Result<Option<Value>> {
    match args.name {
        Section::Environment => places::environment(args.device).map(Some),
        Section::ConformanceOne => conformance::one(args.device).map(Some),
        Section::ConformanceTwo => ranks::run(args, conformance::two),
        Section::EqualityOne => equality::one(args.device).map(Some),
        Section::EqualityTwo | Section::EqualityStaged => ranks::run(args, equality::two),
        Section::Throughput => throughput::run(args).map(Some),
        Section::Kernels => kernels::run(args).map(Some),
    }
}

fn main() -> ExitCode {
    places::prepare();
    let result = match Args::parse().command {
        Command::All(args) => all::run(&args).map(|()| None),
        Command::Section(args) => section(&args),
    };
    match result {
        Ok(Some(findings)) => println!("{findings}"),
        Ok(None) => {}
        Err(error) => {
            eprintln!("gpu_check: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
