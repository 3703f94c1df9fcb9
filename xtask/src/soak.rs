//! `cargo xtask soak NAME`: the same again and again, until what is rare has happened.

mod amp;
mod conformance;
mod digits;
mod hooks;
mod kill_collectives;
mod kill_resume;
mod random;
mod rss;
mod vision;
mod zero_memory;

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
    /// Runs of which a random process is killed at random times, again and again, and that go on.
    KillResume(kill_resume::Args),
    /// LeNet on the bundled images of MNIST with every compression of gradients: accuracy and bytes.
    Hooks(hooks::Args),
    /// LeNet and a ResNet on the same images in 16 bits: accuracy and running statistics.
    Amp(amp::Args),
    /// LeNet on a larger part of MNIST with 1 and 2 ranks (images in BONFIRE_DATA_DIR).
    Mnist,
    /// ResNet-8 on a part of CIFAR-10 (images in BONFIRE_DATA_DIR).
    Cifar,
    /// A perceptron of a hundred million parameters on four ranks, with and without a shared optimizer.
    ZeroMemory(zero_memory::Args),
    /// Ten thousand steps, in which the resident memory must not grow.
    Rss(rss::Args),
}

pub(crate) fn run(soak: &Soak) -> Result<()> {
    match soak {
        Soak::Conformance => conformance::run(),
        Soak::Digits => digits::run(),
        Soak::KillCollectives(args) => kill_collectives::run(args),
        Soak::KillResume(args) => kill_resume::run(args),
        Soak::Hooks(args) => hooks::run(args),
        Soak::Amp(args) => amp::run(args),
        Soak::Mnist => vision::mnist(),
        Soak::Cifar => vision::cifar(),
        Soak::ZeroMemory(args) => zero_memory::run(args),
        Soak::Rss(args) => rss::run(args),
    }
}
