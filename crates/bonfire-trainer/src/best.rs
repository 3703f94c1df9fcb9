use crate::config::PlateauMode;
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{Scalar, State, Stateful};

/// The best figure that validations have found so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Best(Option<f64>);

impl Best {
    /// Takes in a figure, and says whether it is better than all before. NaN never is.
    pub(crate) fn improves(&mut self, value: f64, mode: PlateauMode) -> bool {
        self.improves_by(value, mode, 0.0)
    }

    /// The same for a figure that has to be better by more than `least`.
    pub(crate) fn improves_by(&mut self, value: f64, mode: PlateauMode, least: f64) -> bool {
        let better = match (self.0, mode) {
            (None, _) => !value.is_nan(),
            (Some(best), PlateauMode::Min) => value < best - least,
            (Some(best), PlateauMode::Max) => value > best + least,
        };
        if better {
            self.0 = Some(value);
        }
        better
    }
}

impl Stateful for Best {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        if let Some(best) = self.0 {
            state.scalars.insert("value".to_string(), Scalar::Float(best));
        }
        Ok(state)
    }

    /// Takes the best figure over; a run that had none starts without.
    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        self.0 = match state.scalars.contains_key("value") {
            true => Some(state.take_float("value")?),
            false => None,
        };
        Ok(state.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_better_improves() {
        let mut best = Best::default();
        let improves = [f64::NAN, 2.0, 2.0, 3.0, f64::NAN, 1.5];
        let improves = improves.map(|value| best.improves(value, PlateauMode::Min));
        assert_eq!(improves, [false, true, false, false, false, true]);
        let mut restored = Best::default();
        restored.load_state(best.state().unwrap()).unwrap();
        assert_eq!(restored, best);
        assert!(restored.improves(9.0, PlateauMode::Max));
    }
}
