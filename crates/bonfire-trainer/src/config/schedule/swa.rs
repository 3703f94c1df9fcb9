use super::RunLength;
use crate::config::sections::AnnealStrategy;
use std::f64::consts::PI;

/// The learning rate while weights are averaged: it goes to a constant one that keeps exploring.
///
/// From epoch `start_epoch` on, with `r` the rate that the course has there and `t` the share of the
/// annealing that is over: `r + (lr - r) a(t)`, where `a(t)` is `t` or `(1 - cos(pi t)) / 2`.
///
/// # Reference
/// `torch.optim.swa_utils.SWALR`, stepped with every optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwaRate {
    /// Epoch in which it leaves the course, from 0.
    pub start_epoch: u64,
    /// The rate that it goes to, before scaling.
    pub lr: f64,
    /// Epochs that it takes to get there. 0 jumps.
    pub anneal_epochs: u64,
    /// How it gets there.
    pub anneal_strategy: AnnealStrategy,
}

impl SwaRate {
    pub(super) fn start(&self, length: RunLength) -> u64 {
        self.start_epoch.saturating_mul(length.steps_per_epoch.max(1))
    }

    /// The rate of a step; `course` gives the others.
    pub(super) fn lr(&self, step: u64, length: RunLength, course: impl Fn(u64) -> f64) -> f64 {
        let start = self.start(length);
        if step < start {
            return course(step);
        }
        let whole = self.anneal_epochs.saturating_mul(length.steps_per_epoch.max(1));
        let progress = match whole {
            0 => 1.0,
            whole => ((step - start) as f64 / whole as f64).min(1.0),
        };
        let share = match self.anneal_strategy {
            AnnealStrategy::Linear => progress,
            AnnealStrategy::Cos => (1.0 - (PI * progress).cos()) / 2.0,
        };
        let from = course(start);
        from + (self.lr - from) * share
    }
}
