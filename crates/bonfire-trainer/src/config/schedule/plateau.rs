//! A rate that falls when a validation figure no longer improves.

use crate::config::sections::{PlateauMode, ScheduleSection, ThresholdMode};
use bonfire_tensor::state::{Scalar, State, StateError};

/// A fall of less than this leaves the rate as it is (PyTorch's `eps`).
const LEAST_FALL: f64 = 1e-8;

/// Settings of a rate that falls on plateaus, with the names and defaults of PyTorch.
///
/// # Reference
/// `torch.optim.lr_scheduler.ReduceLROnPlateau`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceOnPlateau {
    /// Validation figure that is watched. Default `loss`.
    pub metric: String,
    /// Which values are better. Default lower ones.
    pub mode: PlateauMode,
    /// What the rate is multiplied by, in (0, 1). Default 0.1.
    pub factor: f64,
    /// Validations without improvement that are tolerated. Default 10.
    pub patience: u64,
    /// What counts as an improvement; 0 or more. Default 1e-4.
    pub threshold: f64,
    /// What `threshold` is a part of. Default the best value.
    pub threshold_mode: ThresholdMode,
    /// Validations after a fall that do not count. Default 0.
    pub cooldown: u64,
    /// Rate below which it never falls. Default 0.
    pub min_lr: f64,
}

impl Default for ReduceOnPlateau {
    fn default() -> Self {
        Self {
            metric: "loss".to_owned(),
            mode: PlateauMode::Min,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            threshold_mode: ThresholdMode::Rel,
            cooldown: 0,
            min_lr: 0.0,
        }
    }
}

impl ReduceOnPlateau {
    fn is_better(&self, value: f64, best: f64) -> bool {
        match (self.mode, self.threshold_mode) {
            (PlateauMode::Min, ThresholdMode::Rel) => value < best * (1.0 - self.threshold),
            (PlateauMode::Min, ThresholdMode::Abs) => value < best - self.threshold,
            (PlateauMode::Max, ThresholdMode::Rel) => value > best * (1.0 + self.threshold),
            (PlateauMode::Max, ThresholdMode::Abs) => value > best + self.threshold,
        }
    }

    pub(super) fn write_into(&self, section: ScheduleSection) -> ScheduleSection {
        ScheduleSection {
            metric: Some(self.metric.clone()),
            mode: Some(self.mode),
            factor: Some(self.factor),
            patience: Some(self.patience),
            threshold: Some(self.threshold),
            threshold_mode: Some(self.threshold_mode),
            cooldown: Some(self.cooldown),
            min_lr: Some(self.min_lr),
            ..section
        }
    }
}

/// Where a rate that falls on plateaus stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plateau {
    pub(super) settings: ReduceOnPlateau,
    pub(super) lr: f64,
    best: f64,
    num_bad: u64,
    cooldown_left: u64,
}

impl Plateau {
    pub(super) fn new(settings: ReduceOnPlateau, lr: f64) -> Self {
        let best = match settings.mode {
            PlateauMode::Min => f64::INFINITY,
            PlateauMode::Max => f64::NEG_INFINITY,
        };
        Self { settings, lr, best, num_bad: 0, cooldown_left: 0 }
    }

    /// Takes in the figure of a validation. What is no number is no improvement.
    pub(super) fn observe(&mut self, value: f64) {
        if self.settings.is_better(value, self.best) {
            (self.best, self.num_bad) = (value, 0);
        } else {
            self.num_bad += 1;
        }
        if self.cooldown_left > 0 {
            self.cooldown_left -= 1;
            self.num_bad = 0;
        }
        if self.num_bad > self.settings.patience {
            let lower = (self.lr * self.settings.factor).max(self.settings.min_lr);
            if self.lr - lower > LEAST_FALL {
                self.lr = lower;
            }
            (self.cooldown_left, self.num_bad) = (self.settings.cooldown, 0);
        }
    }

    pub(super) fn state(&self) -> State {
        let scalars = [
            ("lr", Scalar::Float(self.lr)),
            ("best", Scalar::Float(self.best)),
            ("num_bad", Scalar::Uint(self.num_bad)),
            ("cooldown_left", Scalar::Uint(self.cooldown_left)),
        ];
        let scalars = scalars.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        State { scalars, ..State::default() }
    }

    pub(super) fn load_state(&mut self, state: &mut State) -> Result<(), StateError> {
        self.lr = state.take_float("lr")?;
        self.best = state.take_float("best")?;
        self.num_bad = state.take_uint("num_bad")?;
        self.cooldown_left = state.take_uint("cooldown_left")?;
        Ok(())
    }
}
