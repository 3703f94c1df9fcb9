//! The learning rate as a function of the optimizer step.

use std::f64::consts::PI;

use super::resolve::Resolver;
use super::sections::{ScheduleKind, ScheduleSection};

/// A schedule with all its settings, before the length of the run is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulePlan {
    /// Course after the warm-up.
    pub kind: ScheduleKind,
    /// Optimizer steps of linear warm-up; 0 is none.
    pub warmup_steps: u64,
    /// Fraction of the rate at which the warm-up starts, in (0, 1].
    pub warmup_start_factor: f64,
    /// Rate at the last step of a cosine; from 0 to the optimizer's rate.
    pub min_lr: f64,
}

/// The learning rate of every step of a run; made by [`Plan::schedule`](super::Plan::schedule).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    plan: SchedulePlan,
    base_lr: f64,
    total_steps: u64,
}

impl Schedule {
    /// Makes the schedule of a run of `total_steps` optimizer steps around the rate `base_lr`.
    pub fn new(plan: SchedulePlan, base_lr: f64, total_steps: u64) -> Self {
        Self { plan, base_lr, total_steps }
    }

    /// Returns the learning rate of an optimizer step, counted from 0.
    ///
    /// With `w` warm-up steps of start factor `f`, `n` steps in all and the rate `b`:
    ///
    /// - warm-up, `step < w`: `b (f + (1 - f) step / w)`;
    /// - constant: `b`;
    /// - cosine, with `t = (step - w) / (n - w)`: `min + (b - min) (1 + cos(pi t)) / 2`, and `min`
    ///   from step `n` on.
    ///
    /// # Reference
    /// `torch.optim.lr_scheduler.LinearLR` and `CosineAnnealingLR`.
    pub fn lr(&self, step: u64) -> f64 {
        let SchedulePlan { kind, warmup_steps, warmup_start_factor: start, min_lr } = self.plan;
        if step < warmup_steps {
            let progress = step as f64 / warmup_steps as f64;
            return self.base_lr * (start + (1.0 - start) * progress);
        }
        match kind {
            ScheduleKind::Constant => self.base_lr,
            ScheduleKind::Cosine if step >= self.total_steps => min_lr,
            ScheduleKind::Cosine => {
                let progress =
                    (step - warmup_steps) as f64 / (self.total_steps - warmup_steps) as f64;
                min_lr + (self.base_lr - min_lr) * (1.0 + (PI * progress).cos()) / 2.0
            }
        }
    }

    /// Returns the length of the run in optimizer steps.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }
}

impl SchedulePlan {
    /// Writes the settings back into a section, every key of the kind given.
    pub(super) fn to_section(self) -> ScheduleSection {
        ScheduleSection {
            kind: Some(self.kind),
            warmup_steps: Some(self.warmup_steps),
            warmup_start_factor: Some(self.warmup_start_factor),
            min_lr: (self.kind == ScheduleKind::Cosine).then_some(self.min_lr),
        }
    }
}

/// Fills in the defaults and checks the limits, given the optimizer's rate.
pub(super) fn resolve(
    section: &ScheduleSection,
    base_lr: f64,
    resolver: &mut Resolver<'_>,
) -> SchedulePlan {
    let kind = section.kind.unwrap_or(ScheduleKind::Constant);
    let start = section.warmup_start_factor.unwrap_or(0.1);
    let ok = start > 0.0 && start <= 1.0;
    resolver.check("schedule.warmup_start_factor", start, ok, "must be above 0 and at most 1");
    let min_lr = section.min_lr.unwrap_or(0.0);
    if kind == ScheduleKind::Constant && section.min_lr.is_some() {
        let message = "schedule.min_lr is a key of kind \"cosine\", not of \"constant\"; remove it";
        resolver.reject("schedule.min_lr", message);
    } else {
        let ok = min_lr >= 0.0 && (min_lr <= base_lr || min_lr == 0.0);
        let remedy = format!("must be from 0 to optimizer.lr = {base_lr}");
        resolver.check("schedule.min_lr", min_lr, ok, &remedy);
    }
    SchedulePlan {
        kind,
        warmup_steps: section.warmup_steps.unwrap_or(0),
        warmup_start_factor: start,
        min_lr,
    }
}

#[cfg(test)]
mod tests {
    use super::{Schedule, SchedulePlan};
    use crate::config::ScheduleKind;

    fn schedule(kind: ScheduleKind, warmup_steps: u64) -> Schedule {
        let plan = SchedulePlan { kind, warmup_steps, warmup_start_factor: 0.1, min_lr: 0.2 };
        Schedule::new(plan, 2.0, 110)
    }

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    }

    #[test]
    fn warms_up_linearly_from_the_start_factor() {
        let schedule = schedule(ScheduleKind::Constant, 10);
        near(schedule.lr(0), 0.2);
        near(schedule.lr(5), 1.1);
        near(schedule.lr(10), 2.0);
        near(schedule.lr(1_000_000), 2.0);
    }

    #[test]
    fn cosine_falls_from_the_base_rate_to_the_minimum() {
        let schedule = schedule(ScheduleKind::Cosine, 10);
        near(schedule.lr(10), 2.0);
        near(schedule.lr(60), 1.1);
        near(schedule.lr(110), 0.2);
        near(schedule.lr(u64::MAX), 0.2);
    }

    #[test]
    fn a_warm_up_as_long_as_the_run_or_longer_is_no_division_by_zero() {
        for warmup_steps in [110, 500] {
            let schedule = schedule(ScheduleKind::Cosine, warmup_steps);
            near(schedule.lr(0), 0.2);
            near(schedule.lr(warmup_steps), 0.2);
        }
    }
}
