//! Running statistics and other buffers, which no gradient changes.

use super::DataParallel;
use crate::ParallelError;
use crate::exchange::copy_of;
use bonfire_comm::{Buffer, DType, HostBuffer, ProcessGroup};
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

/// Tensors of fewer bytes travel together.
const SMALL: usize = 64 * 1024;

/// Gives every rank the tensors of `root`: the small ones of an element type in one message, larger
/// ones in the memory that they have.
pub(super) fn broadcast_state(
    group: &ProcessGroup,
    state: State,
    root: usize,
) -> Result<State, ParallelError> {
    if group.world_size() == 1 {
        return Ok(state);
    }
    let (small, large): (Tensors, Tensors) =
        state.tensors.into_iter().partition(|(_, tensor)| tensor.data.as_bytes().len() < SMALL);
    let mut out = State::default();
    for dtype in DType::ALL {
        let of_type = small.iter().filter(|(_, tensor)| tensor.data.dtype() == dtype);
        broadcast_packed(group, dtype, &of_type.collect::<Vec<_>>(), root, &mut out)?;
    }
    for (name, tensor) in large {
        let work = group.start_broadcast(Buffer::Host(tensor.data), root)?;
        let data = work.wait()?.into_host()?;
        out.tensors.insert(name, HostTensor { shape: tensor.shape, data });
    }
    Ok(out)
}

type Tensors = Vec<(String, HostTensor)>;

fn broadcast_packed(
    group: &ProcessGroup,
    dtype: DType,
    tensors: &[&(String, HostTensor)],
    root: usize,
    out: &mut State,
) -> Result<(), ParallelError> {
    let len: usize = tensors.iter().map(|(_, tensor)| tensor.data.len()).sum();
    let mut packed = HostBuffer::zeros(dtype, len);
    let mut rest = packed.as_bytes_mut();
    for (_, tensor) in tensors {
        let (place, after) = rest.split_at_mut(tensor.data.as_bytes().len());
        place.copy_from_slice(tensor.data.as_bytes());
        rest = after;
    }
    if len > 0 {
        packed = group.start_broadcast(Buffer::Host(packed), root)?.wait()?.into_host()?;
    }
    let mut start = 0;
    for (name, tensor) in tensors {
        let end = start + tensor.data.len();
        let data = copy_of(&packed, start..end);
        start = end;
        out.tensors.insert(name.clone(), HostTensor { shape: tensor.shape.clone(), data });
    }
    Ok(())
}
