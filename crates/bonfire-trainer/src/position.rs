use bonfire_tensor::TensorError;
use bonfire_tensor::state::{Scalar, State, Stateful};

/// Where a run stands: what the schedule and the sampler continue from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Pass over the training data, from 0.
    pub(crate) epoch: u64,
    /// Optimizer steps, skipped ones included: what the length of a run counts.
    pub(crate) step: u64,
    /// Those of them that an overflow kept from the parameters.
    pub(crate) skipped: u64,
    /// Samples of this epoch consumed by all ranks.
    pub(crate) cursor: u64,
}

impl Position {
    /// Steps that changed the parameters: what the schedule counts.
    pub(crate) fn taken(&self) -> u64 {
        self.step.saturating_sub(self.skipped)
    }
}

impl Stateful for Position {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        state.scalars.insert("epoch".into(), Scalar::Uint(self.epoch));
        state.scalars.insert("step".into(), Scalar::Uint(self.step));
        state.scalars.insert("skipped".into(), Scalar::Uint(self.skipped));
        state.scalars.insert("cursor".into(), Scalar::Uint(self.cursor));
        Ok(state)
    }

    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        *self = Self {
            epoch: state.take_uint("epoch")?,
            step: state.take_uint("step")?,
            skipped: state.take_uint("skipped")?,
            cursor: state.take_uint("cursor")?,
        };
        Ok(state.finish()?)
    }
}
