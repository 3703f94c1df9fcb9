//! Running statistics and other buffers, which no gradient changes.

use super::DataParallel;
use crate::ParallelError;
use crate::exchange::copy_of;
use bonfire_comm::{Buffer, DType, HostBuffer, Operation, ProcessGroup};
use bonfire_tensor::host::burn_type;
use bonfire_tensor::lend;
use bonfire_tensor::parameters::{self, ParameterSpec, Role};
use bonfire_tensor::state::{HostTensor, State};
use burn::module::Module;
use burn::tensor::Tensor;

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
        let apart = |spec: &ParameterSpec| self.apart && spec.dtype.is_float();
        if self.specs.iter().any(|spec| spec.role == Role::Buffer && !apart(spec)) {
            let wanted = |spec: &ParameterSpec| spec.role == Role::Buffer && !apart(spec);
            let buffers = parameters::read(&self.model, wanted)?;
            let buffers = broadcast_state(&self.control, buffers, source)?;
            self.model = parameters::write(self.model.clone(), buffers)?;
        }
        if self.apart {
            self.broadcast_apart(source)?;
        }
        Ok(())
    }

    /// Sends the buffers of an element type as one flat tensor, by work of the device.
    fn broadcast_apart(&mut self, source: usize) -> Result<(), ParallelError> {
        let mut buffers = parameters::float_buffers(&self.model, &self.specs);
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            let of_type = |tensor: &Tensor<1>| tensor.dtype() == burn_type(dtype);
            let places: Vec<usize> =
                (0..buffers.len()).filter(|place| of_type(&buffers[*place])).collect();
            let [first, ..] = places.as_slice() else { continue };
            let mut parts: Vec<Tensor<1>> =
                places.iter().map(|place| buffers[*place].clone()).collect();
            // One more, so that the whole is never a buffer itself.
            parts.push(buffers[*first].clone().slice(0..1).zeros_like());
            let operation = Operation::Broadcast { root: source };
            let whole = lend::start(self.reducer.group(), operation, Tensor::cat(parts, 0))?;
            let whole = whole.finish()?;
            let mut start = 0;
            for place in places {
                let end = start + buffers[place].dims()[0];
                buffers[place] = whole.clone().slice(start..end);
                start = end;
            }
        }
        self.model = parameters::set_float_buffers(self.model.clone(), &self.specs, buffers);
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
