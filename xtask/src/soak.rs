//! `cargo xtask soak NAME`: the same again and again, until what is rare has happened.

mod conformance;
mod digits;
mod kill_collectives;

use crate::Result;

/// What to repeat.
#[derive(clap::Subcommand)]
pub(crate) enum Soak {
    /// LeNet on the bundled digits: accuracy with 1, 2 and 3 ranks, repeatability, resume.
    Digits,
    /// Every operation, type and length with every algorithm, over every transport.
    Conformance,
    /// Random collectives of random worlds, of which a random rank is killed at a random time.
    KillCollectives(kill_collectives::Args),
}

pub(crate) fn run(soak: &Soak) -> Result<()> {
    match soak {
        Soak::Conformance => conformance::run(),
        Soak::Digits => digits::run(),
        Soak::KillCollectives(args) => kill_collectives::run(args),
    }
}
