use crate::best::Best;
use crate::callback::Callback;
use crate::config::Monitor;
use crate::{Metrics, TrainError};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{Scalar, State, Stateful};

/// Ends a run when a validation figure has stopped to improve.
///
/// A validation is better than those before if its figure beats their best by more than `min_delta`;
/// after `patience` validations in a row that are not, or one whose figure is infinite or not a
/// number, the run ends as if its budget were used up. Its state is in every checkpoint.
///
/// # Reference
/// `lightning.pytorch.callbacks.EarlyStopping`: same defaults; patience counts validations.
#[derive(Debug, Clone)]
pub struct EarlyStopping {
    monitor: Monitor,
    patience: u64,
    min_delta: f64,
    best: Best,
    /// Validations since the best one.
    waited: u64,
    /// Whether a figure was infinite or not a number.
    lost: bool,
}

impl EarlyStopping {
    /// Watches a figure, with a patience of 3 validations and any improvement counting.
    pub fn new(monitor: Monitor) -> Self {
        let best = Best::of(Some(&monitor));
        Self { monitor, patience: 3, min_delta: 0.0, best, waited: 0, lost: false }
    }

    /// Sets how many validations without improvement are too many; 0 counts as 1.
    pub fn with_patience(self, patience: u64) -> Self {
        Self { patience: patience.max(1), ..self }
    }

    /// Sets what an improvement has to exceed, 0 or more.
    pub fn with_min_delta(self, min_delta: f64) -> Self {
        Self { min_delta: min_delta.abs(), ..self }
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> &str {
        "early_stopping"
    }

    fn on_validation_end(
        &mut self,
        _epoch: u64,
        _step: u64,
        metrics: &Metrics,
    ) -> Result<(), TrainError> {
        let Some(value) = metrics.mean(&self.monitor.metric) else {
            return Err(self.monitor.missing("early_stopping.monitor", metrics));
        };
        match self.best.improves_by(value, self.monitor.mode, self.min_delta) {
            true => self.waited = 0,
            false => self.waited += 1,
        }
        self.lost |= !value.is_finite();
        Ok(())
    }

    fn is_satisfied(&self) -> bool {
        self.lost || self.waited >= self.patience
    }

    fn stateful(&mut self) -> Option<&mut dyn Stateful> {
        Some(self)
    }
}

impl Stateful for EarlyStopping {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        state.insert_under("best", self.best.state()?);
        state.scalars.insert("waited".to_string(), Scalar::Uint(self.waited));
        state.scalars.insert("lost".to_string(), Scalar::Bool(self.lost));
        Ok(state)
    }

    /// Takes over how long was waited; a run that did not watch, or another figure, begins to do so.
    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        let best = state.take_under("best");
        if self.best.is_of_another(&best) {
            return Ok(());
        }
        self.best.load_state(best)?;
        self.waited = state.take_uint("waited")?;
        self.lost = state.take_bool("lost")?;
        Ok(state.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricValue;

    fn validate(stopping: &mut EarlyStopping, loss: f64) -> bool {
        let value = MetricValue { name: "loss".to_string(), sum: loss, count: 1.0 };
        stopping.on_validation_end(0, 0, &Metrics(vec![value])).unwrap();
        stopping.is_satisfied()
    }

    #[test]
    fn it_waits_for_an_improvement_of_more_than_the_least() {
        let mut stopping =
            EarlyStopping::new(Monitor::new("loss")).with_patience(2).with_min_delta(0.1);
        let ends = [1.0, 0.95, 0.8, 0.75, 0.71].map(|loss| validate(&mut stopping, loss));
        assert_eq!(ends, [false, false, false, false, true]);
        let resumed = |stopping: EarlyStopping, from: &EarlyStopping| {
            let mut resumed = stopping;
            resumed.load_state(from.state().unwrap()).unwrap();
            resumed.is_satisfied()
        };
        let of = |metric: &str| EarlyStopping::new(Monitor::new(metric));
        assert!(resumed(of("loss").with_patience(2), &stopping));
        assert!(!resumed(of("loss").with_patience(9), &stopping), "more patience goes on");
        assert!(!resumed(of("accuracy").with_patience(2), &stopping), "another figure begins anew");
    }

    #[test]
    fn what_is_not_a_number_ends_the_run() {
        let mut stopping = EarlyStopping::new(Monitor::new("loss"));
        assert!(validate(&mut stopping, f64::NAN));
    }
}
