//! One rise and one fall of the rate, and of momentum the other way round.

use std::f64::consts::PI;

use crate::config::sections::{AnnealStrategy, ScheduleSection};

/// Settings of a run of one cycle, with the names and defaults of PyTorch.
///
/// The rate rises from `max_lr / div_factor` to `max_lr` over `pct_start` of the run, then falls to
/// `max_lr / div_factor / final_div_factor` at the last step. Momentum falls from `max_momentum` to
/// `base_momentum` and rises back.
///
/// # Reference
/// `torch.optim.lr_scheduler.OneCycleLR` (with two phases); Smith and Topin, "Super-Convergence",
/// arXiv:1708.07120.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneCycle {
    /// Highest rate, before scaling; `None` is the optimizer's rate.
    pub max_lr: Option<f64>,
    /// Share of the run in which the rate rises, in [0, 1]. Default 0.3.
    pub pct_start: f64,
    /// Highest over first rate; above 0. Default 25.
    pub div_factor: f64,
    /// First over last rate; above 0. Default 10,000.
    pub final_div_factor: f64,
    /// Shape of rise and fall. Default a cosine.
    pub anneal_strategy: AnnealStrategy,
    /// Lowest and highest momentum (Adam: first beta), each in [0, 1); `None` leaves it alone. Default
    /// 0.85 and 0.95.
    pub momentum: Option<(f64, f64)>,
}

impl Default for OneCycle {
    fn default() -> Self {
        Self {
            max_lr: None,
            pct_start: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
            anneal_strategy: AnnealStrategy::Cos,
            momentum: Some((0.85, 0.95)),
        }
    }
}

impl OneCycle {
    /// The rate of a step in a run of `total_steps`, given the highest rate.
    pub(super) fn lr(&self, step: u64, total_steps: u64, max_lr: f64) -> f64 {
        let first = max_lr / self.div_factor;
        let last = first / self.final_div_factor;
        self.value(step, total_steps, [first, max_lr, last])
    }

    /// The momentum of a step in a run of `total_steps`.
    pub(super) fn momentum(&self, step: u64, total_steps: u64) -> Option<f64> {
        let (base, max) = self.momentum?;
        Some(self.value(step, total_steps, [max, base, max]))
    }

    /// The step at which the rate is highest; between two steps unless it divides evenly.
    pub(super) fn peak(&self, total_steps: u64) -> f64 {
        self.end_of_rise(total_steps).max(0.0)
    }

    /// Where the rate would be highest; before the first step if the rise takes less than one.
    fn end_of_rise(&self, total_steps: u64) -> f64 {
        self.pct_start * total_steps as f64 - 1.0
    }

    /// What goes from the first value over the second to the third.
    fn value(&self, step: u64, total_steps: u64, [first, middle, last]: [f64; 3]) -> f64 {
        let (end, peak) = (total_steps.saturating_sub(1) as f64, self.end_of_rise(total_steps));
        let step = (step as f64).min(end);
        if step <= peak && peak > 0.0 {
            self.anneal(first, middle, step / peak)
        } else if end > peak {
            self.anneal(middle, last, (step - peak) / (end - peak))
        } else {
            middle
        }
    }

    fn anneal(&self, start: f64, end: f64, progress: f64) -> f64 {
        match self.anneal_strategy {
            AnnealStrategy::Cos => end + (start - end) / 2.0 * ((PI * progress).cos() + 1.0),
            AnnealStrategy::Linear => (end - start) * progress + start,
        }
    }

    pub(super) fn write_into(&self, section: ScheduleSection) -> ScheduleSection {
        ScheduleSection {
            max_lr: self.max_lr,
            pct_start: Some(self.pct_start),
            div_factor: Some(self.div_factor),
            final_div_factor: Some(self.final_div_factor),
            anneal_strategy: Some(self.anneal_strategy),
            cycle_momentum: Some(self.momentum.is_some()),
            base_momentum: self.momentum.map(|(base, _)| base),
            max_momentum: self.momentum.map(|(_, max)| max),
            ..section
        }
    }
}
