//! Collectives on tensors that lie on a device.
//!
//! A flat tensor is lent to an engine: [`start`] hands its memory over, and [`Lent::finish`] returns a
//! tensor with the result. On an engine for devices nobody's host waits: work on the tensor that is
//! submitted after `finish` waits on the device. Any other engine gets a copy in host memory.

#[cfg(feature = "cuda")]
pub(crate) mod cube;
#[cfg(feature = "testing")]
pub mod pretend;

use crate::TensorError;
use crate::host::{flat_from_host, is_on_host, to_host, wire_type};
#[cfg(any(feature = "cuda", feature = "testing"))]
use bonfire_comm::MemoryKind;
use bonfire_comm::{Buffer, Operation, ProcessGroup, Work};
use burn::tensor::{Device, Tensor};
#[cfg(feature = "cuda")]
pub(crate) use cube::is_cuda;

/// Whether tensors lie on a device, where host memory is out of reach.
pub fn is_apart(device: &Device) -> bool {
    #[cfg(feature = "testing")]
    if pretend::is_apart() {
        return true;
    }
    !is_on_host(&Tensor::<1>::empty([0], &device.clone().without_autodiff()))
}

/// A tensor that an operation works on.
pub struct Lent(Way);

enum Way {
    #[cfg(feature = "cuda")]
    Cube { flat: Tensor<1>, work: Work },
    #[cfg(feature = "testing")]
    Pretended(pretend::Lent),
    /// Through host memory.
    Staged { work: Work, device: Device },
}

/// Starts an operation in place on a flat tensor.
///
/// The caller holds no other handle of the tensor's memory: it is overwritten.
///
/// # Collective
/// As the operation.
///
/// # Errors
/// [`TensorError::UnsupportedDType`]; when the device fails; failures of the group.
pub fn start(
    group: &ProcessGroup,
    operation: Operation,
    flat: Tensor<1>,
) -> Result<Lent, TensorError> {
    wire_type(flat.dtype(), "a tensor to lend")?;
    #[cfg(any(feature = "cuda", feature = "testing"))]
    if group.capabilities().memory.contains(&MemoryKind::Device) {
        #[cfg(feature = "testing")]
        if pretend::is_apart() {
            return Ok(Lent(Way::Pretended(pretend::start(group, operation, flat)?)));
        }
        #[cfg(feature = "cuda")]
        if cube::is_cuda(&flat) {
            let buffer = cube::lend(&flat)?;
            let work = group.start(operation, Buffer::Device(buffer))?;
            return Ok(Lent(Way::Cube { flat, work }));
        }
    }
    let device = flat.device();
    let work = group.start(operation, Buffer::Host(to_host(flat)?))?;
    Ok(Lent(Way::Staged { work, device }))
}

impl Lent {
    /// Whether [`finish`](Self::finish) would have nothing to wait for, on the host or on the device.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "cuda")]
            Way::Cube { work, .. } => work.is_done(),
            #[cfg(feature = "testing")]
            Way::Pretended(lent) => lent.is_done(),
            Way::Staged { work, .. } => work.is_done(),
        }
    }

    /// Returns the tensor, whose later uses wait for the operation.
    ///
    /// On an engine for devices a failure of the operation ends the session, and the next call on
    /// any of its groups returns it; the tensor holds unspecified values then.
    ///
    /// # Errors
    /// Those of the operation, as far as they are known.
    pub fn finish(self) -> Result<Tensor<1>, TensorError> {
        match self.0 {
            #[cfg(feature = "cuda")]
            Way::Cube { flat, work } => {
                cube::order_behind(&flat, work.fence()?)?;
                Ok(flat)
            }
            #[cfg(feature = "testing")]
            Way::Pretended(lent) => lent.finish(),
            Way::Staged { work, device } => Ok(flat_from_host(work.wait()?.into_host()?, &device)),
        }
    }
}
