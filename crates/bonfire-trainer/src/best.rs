use crate::config::{Monitor, PlateauMode};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{Scalar, State, Stateful};

/// The best value of a validation figure so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Best {
    /// Of which figure, and what is better.
    of: String,
    value: Option<f64>,
}

impl Best {
    /// None yet, of what a monitor watches.
    pub(crate) fn of(monitor: Option<&Monitor>) -> Self {
        let of = monitor.map(|monitor| format!("{} {}", monitor.mode, monitor.metric));
        Self { of: of.unwrap_or_default(), value: None }
    }

    /// Takes in a figure, and says whether it is better than all before. NaN never is.
    pub(crate) fn improves(&mut self, value: f64, mode: PlateauMode) -> bool {
        self.improves_by(value, mode, 0.0)
    }

    /// The same for a figure that has to be better by more than `least`.
    pub(crate) fn improves_by(&mut self, value: f64, mode: PlateauMode, least: f64) -> bool {
        let better = match (self.value, mode) {
            (None, _) => !value.is_nan(),
            (Some(best), PlateauMode::Min) => value < best - least,
            (Some(best), PlateauMode::Max) => value > best + least,
        };
        if better {
            self.value = Some(value);
        }
        better
    }

    /// Whether a state is that of another figure.
    pub(crate) fn is_of_another(&self, state: &State) -> bool {
        state.scalars.get("of") != Some(&Scalar::Text(self.of.clone()))
    }
}

impl Stateful for Best {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        state.scalars.insert("of".to_string(), Scalar::Text(self.of.clone()));
        if let Some(value) = self.value {
            state.scalars.insert("value".to_string(), Scalar::Float(value));
        }
        Ok(state)
    }

    /// Takes the best value over; that of another figure says nothing.
    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        let other = self.is_of_another(&state);
        state.scalars.remove("of");
        let value = match state.scalars.contains_key("value") {
            true => Some(state.take_float("value")?),
            false => None,
        };
        self.value = value.filter(|_| !other);
        Ok(state.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_better_improves() {
        let mut best = Best::of(Some(&Monitor::new("loss")));
        let improves = [f64::NAN, 2.0, 2.0, 3.0, f64::NAN, 1.5];
        let improves = improves.map(|value| best.improves(value, PlateauMode::Min));
        assert_eq!(improves, [false, true, false, false, false, true]);
        let mut restored = Best::of(Some(&Monitor::new("loss")));
        restored.load_state(best.state().unwrap()).unwrap();
        assert_eq!(restored, best);
        let mut other = Best::of(Some(&Monitor::new("accuracy")));
        other.load_state(best.state().unwrap()).unwrap();
        assert!(other.improves(0.1, PlateauMode::Max), "the best loss is no accuracy");
    }
}
