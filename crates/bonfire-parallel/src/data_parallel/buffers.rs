//! Running statistics and other buffers, which no gradient changes.

use super::DataParallel;
use crate::ParallelError;
use bonfire_comm::{Buffer, ProcessGroup};
use bonfire_tensor::parameters::{self, Role};
use bonfire_tensor::state::{HostTensor, State};
use burn::module::Module;

impl<M: Module> DataParallel<M> {
    /// Gives every rank the running statistics and other buffers of rank 0, or of the first rank
    /// that still had batches.
    ///
    /// # Collective
    /// All ranks; does nothing when the model has no buffers.
    ///
    /// # Errors
    /// Failures of the group.
    pub fn synchronize_buffers(&mut self) -> Result<(), ParallelError> {
        if !self.has_buffers || self.control.world_size() == 1 {
            return Ok(());
        }
        let source = self.active.first().copied().unwrap_or(0);
        let buffers = parameters::read(&self.model, |spec| spec.role == Role::Buffer)?;
        let buffers = broadcast_state(&self.control, buffers, source)?;
        self.model = parameters::write(self.model.clone(), buffers)?;
        Ok(())
    }
}

/// Gives every rank the tensors of `root`, one broadcast for each.
pub(super) fn broadcast_state(
    group: &ProcessGroup,
    state: State,
    root: usize,
) -> Result<State, ParallelError> {
    if group.world_size() == 1 {
        return Ok(state);
    }
    let mut works = Vec::new();
    for (name, tensor) in state.tensors {
        let work = group.start_broadcast(Buffer::Host(tensor.data), root)?;
        works.push((name, tensor.shape, work));
    }
    let mut out = State::default();
    for (name, shape, work) in works {
        let data = work.wait()?.into_host()?;
        out.tensors.insert(name, HostTensor { shape, data });
    }
    Ok(out)
}
