//! `bonfire checkpoint`: what is in checkpoints, and what can be made of them.

mod args;
mod inspect;
mod models;
mod upkeep;

pub(crate) use args::CheckpointCommand;

use crate::CliError;
use crate::exit::Outcome;
use std::io::Write;

/// Runs a command of `bonfire checkpoint`.
pub(crate) fn run(command: &CheckpointCommand) -> Result<Outcome, CliError> {
    match command {
        CheckpointCommand::Inspect(args) => inspect::inspect(args),
        CheckpointCommand::Verify(args) => upkeep::verify(args),
        CheckpointCommand::Export(args) => models::export(args),
        CheckpointCommand::Average(args) => models::average(args),
        CheckpointCommand::Prune(args) => upkeep::prune(args),
    }
}

/// Prints a line to standard output; a closed one is nobody's loss.
fn print(line: impl std::fmt::Display) {
    drop(writeln!(std::io::stdout(), "{line}"));
}
