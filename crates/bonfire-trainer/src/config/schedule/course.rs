//! The learning rate as a function of the optimizer step.

use std::f64::consts::PI;

use super::plateau::Plateau;
use super::{Course, SchedulePlan, SwaRate, WarmupLength};
use crate::config::sections::StepUnit;
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{State, Stateful};

/// How long a run is, in optimizer steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLength {
    /// Steps of a pass over the training data.
    pub steps_per_epoch: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
}

/// The learning rate of every step of a run; made by [`Plan::schedule`](crate::config::Plan::schedule).
///
/// All but [`ReduceOnPlateau`](super::ReduceOnPlateau) is a function of the step alone; that course
/// keeps where it stands, which a checkpoint holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    course: Course,
    /// The scaled rate: the optimizer's, or the highest of one cycle.
    base_lr: f64,
    warmup_steps: u64,
    start_factor: f64,
    length: RunLength,
    plateau: Option<Plateau>,
    swa: Option<SwaRate>,
}

/// A step worth looking at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landmark {
    /// The optimizer step, from 0.
    pub step: u64,
    /// What happens there.
    pub what: &'static str,
}

impl Schedule {
    /// Makes the schedule of a run around the optimizer's rate `base_lr`, before scaling.
    pub fn new(plan: &SchedulePlan, base_lr: f64, length: RunLength) -> Self {
        let max_lr = match &plan.course {
            Course::OneCycle(cycle) => cycle.max_lr,
            _ => None,
        };
        let base_lr = max_lr.unwrap_or(base_lr) * plan.scaling.factor();
        let warmup_steps = match (&plan.course, plan.warmup.length) {
            // One cycle warms up by itself.
            (Course::OneCycle(_), _) => 0,
            (_, WarmupLength::Steps(steps)) => steps,
            (_, WarmupLength::Epochs(epochs)) => {
                (epochs * length.steps_per_epoch as f64).round() as u64
            }
        };
        let plateau = match &plan.course {
            Course::ReduceOnPlateau(settings) => Some(Plateau::new(settings.clone(), base_lr)),
            _ => None,
        };
        Self {
            course: plan.course.clone(),
            base_lr,
            warmup_steps,
            start_factor: plan.warmup.start.factor(&plan.scaling),
            length,
            plateau,
            swa: plan.swa.map(|swa| SwaRate { lr: swa.lr * plan.scaling.factor(), ..swa }),
        }
    }

    /// Returns the learning rate of an optimizer step, counted from 0.
    ///
    /// With the scaled rate `b`, `w` warm-up steps from factor `f`, `n` steps in all, and
    /// `t = (step - w) / (n - w)`:
    ///
    /// - warm-up, `step < w`: times `f + (1 - f) step / w`;
    /// - constant: `b`;
    /// - step: `b gamma^floor(step / size)`, multi-step: `b gamma^(milestones reached)`, both
    ///   counted from the start of the run;
    /// - cosine: `min + (b - min) (1 + cos(pi t)) / 2`, and `min` from step `n` on;
    /// - polynomial: `min + (b - min) (1 - t)^power`, and `min` from step `n` on;
    /// - one cycle: see [`OneCycle`](super::OneCycle);
    /// - on plateaus: what [`observe`](Self::observe) has made of `b`;
    /// - while weights are averaged: see [`SwaRate`].
    ///
    /// # Reference
    /// `torch.optim.lr_scheduler`: `LinearLR`, before `CosineAnnealingLR` and `PolynomialLR` by
    /// `SequentialLR`, with `StepLR` and `MultiStepLR` by `ChainedScheduler`; `OneCycleLR`;
    /// `ReduceLROnPlateau`.
    pub fn lr(&self, step: u64) -> f64 {
        match &self.swa {
            Some(swa) => swa.lr(step, self.length, |step| self.course_lr(step)),
            None => self.course_lr(step),
        }
    }

    fn course_lr(&self, step: u64) -> f64 {
        match &self.course {
            Course::Constant => self.base_lr * self.warmup_factor(step),
            Course::Step { size, gamma, unit } => {
                let falls = step / size.saturating_mul(self.steps_of(*unit)).max(1);
                self.base_lr * power(*gamma, falls) * self.warmup_factor(step)
            }
            Course::MultiStep { milestones, gamma, unit } => {
                let unit = self.steps_of(*unit);
                let reached = |milestone: &&u64| milestone.saturating_mul(unit) <= step;
                let falls = milestones.iter().filter(reached).count() as u64;
                self.base_lr * power(*gamma, falls) * self.warmup_factor(step)
            }
            Course::Cosine { min_lr } => {
                self.falling(step, *min_lr, |progress| (1.0 + (PI * progress).cos()) / 2.0)
            }
            Course::Polynomial { power, min_lr } => {
                self.falling(step, *min_lr, |progress| (1.0 - progress).powf(*power))
            }
            Course::OneCycle(cycle) => cycle.lr(step, self.length.total_steps, self.base_lr),
            Course::ReduceOnPlateau(_) => {
                let lr = self.plateau.as_ref().map_or(self.base_lr, |plateau| plateau.lr);
                lr * self.warmup_factor(step)
            }
        }
    }

    /// Returns the momentum of an optimizer step where the schedule sets it (Adam: the first beta).
    pub fn momentum(&self, step: u64) -> Option<f64> {
        match &self.course {
            Course::OneCycle(cycle) => cycle.momentum(step, self.length.total_steps),
            _ => None,
        }
    }

    /// Returns the validation figure that [`observe`](Self::observe) has to be told, if any.
    pub fn metric(&self) -> Option<&str> {
        self.plateau.as_ref().map(|plateau| plateau.settings.metric.as_str())
    }

    /// Takes in the figure of a validation; ranks that are told the same keep the same rates.
    pub fn observe(&mut self, value: f64) {
        if let Some(plateau) = &mut self.plateau {
            plateau.observe(value);
        }
    }

    /// Returns the length of the run in optimizer steps.
    pub fn total_steps(&self) -> u64 {
        self.length.total_steps
    }

    /// Returns the length of the warm-up in optimizer steps.
    pub fn warmup_steps(&self) -> u64 {
        self.warmup_steps
    }

    /// Lists the steps at which something changes, with first, middle and last, in order.
    pub fn landmarks(&self) -> Vec<Landmark> {
        let total = self.length.total_steps;
        let mut marks = vec![
            Landmark { step: 0, what: "first" },
            Landmark { step: self.warmup_steps, what: "end of warm-up" },
        ];
        marks.extend(self.turns());
        let averaging = self.swa.as_ref().map(|swa| swa.start(self.length));
        marks.extend(averaging.map(|step| Landmark { step, what: "averaging of weights" }));
        marks.push(Landmark { step: total / 2, what: "middle" });
        marks.push(Landmark { step: total.saturating_sub(1), what: "last" });
        marks.retain(|mark| mark.step < total);
        // Of two at one step the first says more; a warm-up of no steps ends at the first.
        marks.sort_by_key(|mark| mark.step);
        marks.dedup_by_key(|mark| mark.step);
        marks
    }

    /// Where the course itself turns.
    fn turns(&self) -> Vec<Landmark> {
        /// Falls that are listed.
        const SHOWN: u64 = 20;
        let fall = |step| Landmark { step, what: "fall" };
        match &self.course {
            Course::Step { size, unit, .. } => {
                let size = size.saturating_mul(self.steps_of(*unit)).max(1);
                (1..=SHOWN).map(|index| fall(index.saturating_mul(size))).collect()
            }
            Course::MultiStep { milestones, unit, .. } => {
                let unit = self.steps_of(*unit);
                milestones.iter().map(|milestone| fall(milestone.saturating_mul(unit))).collect()
            }
            Course::OneCycle(cycle) => {
                let step = cycle.peak(self.length.total_steps).round() as u64;
                vec![Landmark { step, what: "highest" }]
            }
            _ => Vec::new(),
        }
    }

    fn warmup_factor(&self, step: u64) -> f64 {
        if step >= self.warmup_steps {
            return 1.0;
        }
        let progress = step as f64 / self.warmup_steps as f64;
        self.start_factor + (1.0 - self.start_factor) * progress
    }

    /// Falls from the rate to `min_lr` between the warm-up and the end of the run.
    fn falling(&self, step: u64, min_lr: f64, left: impl Fn(f64) -> f64) -> f64 {
        if step < self.warmup_steps {
            return self.base_lr * self.warmup_factor(step);
        }
        if step >= self.length.total_steps {
            return min_lr;
        }
        let done = (step - self.warmup_steps) as f64;
        let progress = done / (self.length.total_steps - self.warmup_steps) as f64;
        min_lr + (self.base_lr - min_lr) * left(progress)
    }

    fn steps_of(&self, unit: StepUnit) -> u64 {
        match unit {
            StepUnit::Epoch => self.length.steps_per_epoch.max(1),
            StepUnit::Step => 1,
        }
    }
}

/// What the schedule cannot tell from the step alone; nothing for most.
impl Stateful for Schedule {
    fn state(&self) -> Result<State, TensorError> {
        Ok(self.plateau.as_ref().map(Plateau::state).unwrap_or_default())
    }

    /// Takes over where a run stood. A run that had no such schedule leaves it as it is, and the state
    /// of another schedule is of no use to this one.
    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        let Some(plateau) = &mut self.plateau else { return Ok(()) };
        if state.scalars.is_empty() {
            return Ok(());
        }
        plateau.load_state(&mut state)?;
        Ok(state.finish()?)
    }
}

fn power(gamma: f64, falls: u64) -> f64 {
    gamma.powi(i32::try_from(falls).unwrap_or(i32::MAX))
}
