//! The learning rate over a run: as planned, and as a function of the optimizer step.
//!
//! `docs/schedules.md` has every formula with its source.

mod course;
mod one_cycle;
mod plateau;
mod resolve;
mod scaling;
mod swa;
#[cfg(test)]
mod tests;

pub use course::{Landmark, RunLength, Schedule};
pub use one_cycle::OneCycle;
pub use plateau::ReduceOnPlateau;
pub use scaling::{LrScaling, ScalingRule};
pub use swa::SwaRate;

pub(super) use resolve::{Surroundings, resolve};

use super::sections::{ScheduleKind, ScheduleSection, StepUnit, WarmupStartKind};

/// A schedule with all its settings, before the length of the run is known.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulePlan {
    /// How the optimizer's rate grows with the global batch. Default: not at all.
    pub scaling: LrScaling,
    /// The linear warm-up. Default none.
    pub warmup: Warmup,
    /// What comes after the warm-up. Default constant.
    pub course: Course,
    /// Where weights are averaged, the rate that takes over. Default none.
    pub swa: Option<SwaRate>,
}

/// A linear rise of the rate at the beginning.
///
/// # Reference
/// Goyal et al., "Accurate, Large Minibatch SGD", arXiv:1706.02677, section 2.2;
/// `torch.optim.lr_scheduler.LinearLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// How long it takes. Default 0 steps, which is none.
    pub length: WarmupLength,
    /// Where it starts. Default at a tenth of the rate.
    pub start: WarmupStart,
}

/// The rate at which a warm-up starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WarmupStart {
    /// This fraction of the rate, in (0, 1].
    Factor(f64),
    /// The rate before scaling, as Goyal et al. do; the scaled one where that is the lower of the two, as
    /// with fewer samples than the rate was chosen for.
    Base,
}

impl WarmupStart {
    /// Returns the fraction of the scaled rate at which the warm-up starts.
    pub fn factor(&self, scaling: &LrScaling) -> f64 {
        match *self {
            Self::Factor(factor) => factor,
            Self::Base => scaling.factor().recip().min(1.0),
        }
    }
}

/// How long a warm-up takes; the rate rises with every optimizer step in either case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WarmupLength {
    /// So many optimizer steps.
    Steps(u64),
    /// So many passes over the training data, rounded to whole steps.
    Epochs(f64),
}

/// The learning rate apart from its warm-up.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Course {
    /// Stays.
    #[default]
    Constant,
    /// Is multiplied by `gamma` every `size` units.
    Step {
        /// Units between two falls; 1 or more.
        size: u64,
        /// Factor of a fall, in (0, 1].
        gamma: f64,
        /// What `size` counts.
        unit: StepUnit,
    },
    /// Is multiplied by `gamma` at every milestone.
    MultiStep {
        /// Units from the start of the run; increasing.
        milestones: Vec<u64>,
        /// Factor of a fall, in (0, 1].
        gamma: f64,
        /// What `milestones` count.
        unit: StepUnit,
    },
    /// Falls along half a cosine.
    Cosine {
        /// Rate at the end of the run; from 0 to the optimizer's rate.
        min_lr: f64,
    },
    /// Falls along a power.
    Polynomial {
        /// Exponent; above 0, 1 is a straight line.
        power: f64,
        /// Rate at the end of the run; from 0 to the optimizer's rate.
        min_lr: f64,
    },
    /// Rises and falls once.
    OneCycle(OneCycle),
    /// Falls when a validation figure no longer improves.
    ReduceOnPlateau(ReduceOnPlateau),
}

impl Default for Warmup {
    fn default() -> Self {
        Self { length: WarmupLength::Steps(0), start: WarmupStart::Factor(0.1) }
    }
}

impl Default for SchedulePlan {
    fn default() -> Self {
        Self::new(Course::Constant)
    }
}

impl SchedulePlan {
    /// Makes a schedule without scaling and warm-up.
    pub fn new(course: Course) -> Self {
        Self { scaling: LrScaling::None, warmup: Warmup::default(), course, swa: None }
    }

    /// Sets the warm-up to a number of optimizer steps.
    pub fn with_warmup_steps(self, steps: u64) -> Self {
        let warmup = Warmup { length: WarmupLength::Steps(steps), ..self.warmup };
        Self { warmup, ..self }
    }

    /// Writes the settings back into a section, every key of the kind given.
    pub(in crate::config) fn to_section(&self) -> ScheduleSection {
        let (warmup_steps, warmup_epochs) = match self.warmup.length {
            WarmupLength::Steps(steps) => (Some(steps), None),
            WarmupLength::Epochs(epochs) => (None, Some(epochs)),
        };
        let (start_factor, start) = match self.warmup.start {
            WarmupStart::Factor(factor) => (Some(factor), None),
            WarmupStart::Base => (None, Some(WarmupStartKind::Base)),
        };
        let warms_up = self.course.kind() != ScheduleKind::OneCycle;
        let section = ScheduleSection {
            kind: Some(self.course.kind()),
            scaling: Some(self.scaling.rule()),
            base_batch_size: self.scaling.base_batch_size(),
            warmup_steps: warmup_steps.filter(|_| warms_up),
            warmup_epochs: warmup_epochs.filter(|_| warms_up),
            warmup_start_factor: start_factor.filter(|_| warms_up),
            warmup_start: start.filter(|_| warms_up),
            ..ScheduleSection::default()
        };
        self.course.write_into(section)
    }
}

impl Course {
    /// Returns the word for it.
    pub fn kind(&self) -> ScheduleKind {
        match self {
            Self::Constant => ScheduleKind::Constant,
            Self::Step { .. } => ScheduleKind::Step,
            Self::MultiStep { .. } => ScheduleKind::MultiStep,
            Self::Cosine { .. } => ScheduleKind::Cosine,
            Self::Polynomial { .. } => ScheduleKind::Polynomial,
            Self::OneCycle(_) => ScheduleKind::OneCycle,
            Self::ReduceOnPlateau(_) => ScheduleKind::ReduceOnPlateau,
        }
    }

    fn write_into(&self, section: ScheduleSection) -> ScheduleSection {
        match self {
            Self::Constant => section,
            Self::Step { size, gamma, unit } => ScheduleSection {
                step_size: Some(*size),
                gamma: Some(*gamma),
                unit: Some(*unit),
                ..section
            },
            Self::MultiStep { milestones, gamma, unit } => ScheduleSection {
                milestones: Some(milestones.clone()),
                gamma: Some(*gamma),
                unit: Some(*unit),
                ..section
            },
            Self::Cosine { min_lr } => ScheduleSection { min_lr: Some(*min_lr), ..section },
            Self::Polynomial { power, min_lr } => {
                ScheduleSection { power: Some(*power), min_lr: Some(*min_lr), ..section }
            }
            Self::OneCycle(cycle) => cycle.write_into(section),
            Self::ReduceOnPlateau(plateau) => plateau.write_into(section),
        }
    }
}
