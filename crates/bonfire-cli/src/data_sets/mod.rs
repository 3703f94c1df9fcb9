//! `bonfire data`: fetches published data sets, and says what is in one.

mod args;
mod catalog;
mod download;
mod error;
mod fetch;
mod info;
mod kind;
mod part;
mod sheet;
mod statistics;
#[cfg(test)]
mod test_server;
mod unpack;
mod unpacked;
mod untrained;

pub(crate) use args::DataCommand;
pub use error::FetchError;
pub(crate) use kind::kind_of;
pub(crate) use untrained::Untrained;

use crate::CliError;
use crate::exit::Outcome;

/// Runs a command of `bonfire data`.
pub(crate) fn run(command: &DataCommand) -> Result<Outcome, CliError> {
    match command {
        DataCommand::Fetch(args) => fetch::fetch(args),
        DataCommand::Info(args) => info::info(args),
    }
}
