use crate::lifecycle::Length;
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{Scalar, State, Stateful};

/// Where a run stands: what the schedule and the sampler continue from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Pass over the training data, from 0.
    pub(crate) epoch: u64,
    /// Optimizer steps, skipped ones included.
    pub(crate) step: u64,
    /// Those of them that an overflow kept from the parameters.
    pub(crate) skipped: u64,
    /// Steps that the schedule counts: those that changed the parameters, in the length that steps
    /// have now. A resume with another global batch size stretches those before.
    pub(crate) scheduled: u64,
    /// Samples of this epoch consumed by all ranks.
    pub(crate) cursor: u64,
    /// Optimizer steps of a whole epoch, when this was last written down.
    pub(crate) steps_per_epoch: u64,
    /// Whether an epoch has ended whose validation is still to come, if one is due.
    pub(crate) unvalidated: bool,
}

impl Position {
    /// Counts a step.
    pub(crate) fn advance(&mut self) {
        self.step += 1;
        self.scheduled += 1;
    }

    /// Notes that a step that was counted was skipped.
    pub(crate) fn take_back(&mut self) {
        self.skipped += 1;
        self.scheduled = self.scheduled.saturating_sub(1);
    }

    /// Takes over that an epoch has another number of steps from now on: the schedule of a number of
    /// epochs goes on from the same part of the run, that of a number of steps from the same step.
    pub(crate) fn stretch(&mut self, length: Length) {
        let steps_per_epoch = length.steps_per_epoch;
        let other = self.steps_per_epoch > 0 && self.steps_per_epoch != steps_per_epoch;
        if other && length.is_in_epochs() {
            let factor = steps_per_epoch as f64 / self.steps_per_epoch as f64;
            self.scheduled = (self.scheduled as f64 * factor).round() as u64;
        }
        self.steps_per_epoch = steps_per_epoch;
    }
}

impl Stateful for Position {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        for (name, value) in [
            ("epoch", self.epoch),
            ("step", self.step),
            ("skipped", self.skipped),
            ("scheduled", self.scheduled),
            ("cursor", self.cursor),
            ("steps_per_epoch", self.steps_per_epoch),
        ] {
            state.scalars.insert(name.to_string(), Scalar::Uint(value));
        }
        state.scalars.insert("unvalidated".to_string(), Scalar::Bool(self.unvalidated));
        Ok(state)
    }

    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        *self = Self {
            epoch: state.take_uint("epoch")?,
            step: state.take_uint("step")?,
            skipped: state.take_uint("skipped")?,
            scheduled: state.take_uint("scheduled")?,
            cursor: state.take_uint("cursor")?,
            steps_per_epoch: state.take_uint("steps_per_epoch")?,
            unvalidated: state.take_bool("unvalidated")?,
        };
        Ok(state.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Budget;

    #[test]
    fn the_schedule_goes_on_from_the_same_part_of_the_run() {
        let epochs = |steps| Length::new(steps, Budget::Epochs(3));
        let mut position = Position::default();
        position.stretch(epochs(100));
        for step in 0..150 {
            position.advance();
            if step % 15 == 0 {
                position.take_back();
            }
        }
        assert_eq!((position.step, position.skipped, position.scheduled), (150, 10, 140));
        let mut of_steps = position;
        of_steps.stretch(Length::new(50, Budget::Steps(300)));
        assert_eq!((of_steps.step, of_steps.scheduled), (150, 140));
        position.stretch(epochs(50));
        assert_eq!((position.step, position.scheduled), (150, 70));
        let mut restored = Position::default();
        restored.load_state(position.state().unwrap()).unwrap();
        assert_eq!(restored, position);
    }
}
