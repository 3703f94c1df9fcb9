//! `bonfire checkpoint`: what is in checkpoints, and what can be made of them.

mod args;
mod inspect;
mod models;
mod upkeep;

pub(crate) use args::CheckpointCommand;

use crate::CliError;
use crate::exit::Outcome;

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
