//! `[average]`: an average of the weights that is evaluated and saved beside them.

use super::plan::Budget;
use super::resolve::Resolver;
use super::schedule::SwaRate;
use super::sections::{AnnealStrategy, AverageKind, AverageSection};
use crate::WeightAverage;
use bonfire_parallel::ParallelError;

/// An average of the weights, resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AveragePlan {
    /// Exponential moving average over steps.
    Ema {
        /// Share of the old average that a step leaves; in [0, 1].
        decay: f64,
        /// Optimizer steps between two values.
        every_n_steps: u64,
        /// First step whose values may be taken, from 0.
        start_step: u64,
    },
    /// Mean over epochs.
    Swa {
        /// First epoch at whose end values are taken, from 0.
        start_epoch: u64,
        /// The rate from there on, if it leaves its course.
        rate: Option<SwaRate>,
    },
}

impl AveragePlan {
    /// Makes the callback that keeps the average.
    ///
    /// # Errors
    /// [`ParallelError::Setting`]; not for a resolved plan.
    pub fn callback(&self) -> Result<WeightAverage, ParallelError> {
        match *self {
            Self::Ema { decay, every_n_steps, start_step } => {
                Ok(WeightAverage::ema(decay)?.with_steps(every_n_steps, start_step))
            }
            Self::Swa { start_epoch, .. } => WeightAverage::swa(start_epoch),
        }
    }

    /// The first step, counted from 0, whose values are taken.
    pub fn first_step(&self, steps_per_epoch: u64) -> u64 {
        match *self {
            Self::Ema { start_step, .. } => start_step,
            Self::Swa { start_epoch, .. } => {
                start_epoch.saturating_add(1).saturating_mul(steps_per_epoch).saturating_sub(1)
            }
        }
    }

    /// The course of the rate while weights are averaged, if it has one of its own.
    pub(super) fn rate(&self) -> Option<SwaRate> {
        match self {
            Self::Ema { .. } => None,
            Self::Swa { rate, .. } => *rate,
        }
    }
}

/// Fills in the defaults and checks the limits.
pub(super) fn resolve(
    section: &AverageSection,
    budget: Budget,
    resolver: &mut Resolver<'_>,
) -> Option<AveragePlan> {
    let Some(kind) = section.kind else {
        if *section != AverageSection::default() {
            resolver.missing("average.kind", "\"ema\" or \"swa\"");
        }
        return None;
    };
    reject_foreign(section, kind, resolver);
    Some(match kind {
        AverageKind::Ema => ema(section, resolver),
        AverageKind::Swa => swa(section, budget, resolver),
    })
}

fn ema(section: &AverageSection, resolver: &mut Resolver<'_>) -> AveragePlan {
    let decay = section.decay.unwrap_or(0.999);
    let ok = (0.0..=1.0).contains(&decay);
    resolver.check("average.decay", decay, ok, "must be from 0 to 1");
    let every_n_steps = section.every_n_steps.unwrap_or(1);
    resolver.check("average.every_n_steps", every_n_steps, every_n_steps > 0, "must be 1 or more");
    AveragePlan::Ema { decay, every_n_steps, start_step: section.start_step.unwrap_or(0) }
}

fn swa(section: &AverageSection, budget: Budget, resolver: &mut Resolver<'_>) -> AveragePlan {
    let key = "average.start_epoch";
    let start_epoch = match (section.start_epoch, budget) {
        (Some(start), Budget::Epochs(all)) => {
            let remedy = format!("must be below train.max_epochs = {all}, or nothing is averaged");
            resolver.check(key, start, start < all, &remedy)
        }
        (Some(start), Budget::Steps(_)) => start,
        // As Lightning: the last fifth.
        (None, Budget::Epochs(all)) => all / 5 * 4 + all % 5 * 4 / 5,
        (None, Budget::Steps(_)) => {
            resolver.missing(key, "the first epoch to average, since train.max_steps is given");
            0
        }
    };
    let rate = section.lr.map(|lr| SwaRate {
        start_epoch,
        lr: resolver.zero_or_more("average.lr", lr),
        anneal_epochs: section.anneal_epochs.unwrap_or(10),
        anneal_strategy: section.anneal_strategy.unwrap_or(AnnealStrategy::Cos),
    });
    if rate.is_none() {
        let of_lr = [
            ("average.anneal_epochs", section.anneal_epochs.is_some()),
            ("average.anneal_strategy", section.anneal_strategy.is_some()),
        ];
        for (key, _) in of_lr.into_iter().filter(|(_, set)| *set) {
            resolver.reject(key, format!("{key} belongs to average.lr: set that, or remove it"));
        }
    }
    AveragePlan::Swa { start_epoch, rate }
}

fn reject_foreign(section: &AverageSection, kind: AverageKind, resolver: &mut Resolver<'_>) {
    let keys = [
        ("decay", section.decay.is_some(), AverageKind::Ema),
        ("every_n_steps", section.every_n_steps.is_some(), AverageKind::Ema),
        ("start_step", section.start_step.is_some(), AverageKind::Ema),
        ("start_epoch", section.start_epoch.is_some(), AverageKind::Swa),
        ("lr", section.lr.is_some(), AverageKind::Swa),
        ("anneal_epochs", section.anneal_epochs.is_some(), AverageKind::Swa),
        ("anneal_strategy", section.anneal_strategy.is_some(), AverageKind::Swa),
    ];
    for (key, _, of) in keys.into_iter().filter(|(_, set, of)| *set && *of != kind) {
        let key = format!("average.{key}");
        let message = format!("{key} is a key of kind \"{of}\", not of \"{kind}\"; remove it");
        resolver.reject(&key, message);
    }
}

/// Writes an average back into a section.
pub(super) fn to_section(plan: Option<AveragePlan>) -> AverageSection {
    match plan {
        None => AverageSection::default(),
        Some(AveragePlan::Ema { decay, every_n_steps, start_step }) => AverageSection {
            kind: Some(AverageKind::Ema),
            decay: Some(decay),
            every_n_steps: Some(every_n_steps),
            start_step: Some(start_step),
            ..AverageSection::default()
        },
        Some(AveragePlan::Swa { start_epoch, rate }) => AverageSection {
            kind: Some(AverageKind::Swa),
            start_epoch: Some(start_epoch),
            lr: rate.map(|rate| rate.lr),
            anneal_epochs: rate.map(|rate| rate.anneal_epochs),
            anneal_strategy: rate.map(|rate| rate.anneal_strategy),
            ..AverageSection::default()
        },
    }
}
