//! Figures that a device computes, read without waiting for the device.

use crate::TensorError;
use crate::host::to_host;
use bonfire_comm::HostBuffer;
use burn::tensor::{DType, Tensor};
use std::time::Duration;

/// A few numbers on their way from a device to the host.
///
/// On a GPU the copy is part of the device's own work, right behind what computes the numbers, so
/// that [`read`](Self::read) does not wait for what is submitted thereafter.
pub struct Later(Way);

enum Way {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Copy),
    /// Host memory can be read at any time.
    Here(Box<Tensor<1>>),
}

impl Later {
    /// Begins to copy a flat tensor of f32.
    ///
    /// # Errors
    /// When the device fails.
    pub fn of(flat: Tensor<1>) -> Result<Self, TensorError> {
        let flat = if flat.dtype() == DType::F32 { flat } else { flat.cast(DType::F32) };
        #[cfg(feature = "cuda")]
        if crate::lend::is_cuda(&flat) {
            return Ok(Self(Way::Cuda(cuda::Copy::begin(&flat)?)));
        }
        Ok(Self(Way::Here(Box::new(flat))))
    }

    /// Waits until the numbers are there.
    ///
    /// # Errors
    /// When the device fails, or has not come so far within `patience`.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables, reason = "what is here is here"))]
    pub fn read(self, patience: Duration) -> Result<Vec<f32>, TensorError> {
        match self.0 {
            #[cfg(feature = "cuda")]
            Way::Cuda(copy) => copy.finish(patience),
            Way::Here(flat) => match to_host(*flat)? {
                HostBuffer::F32(values) => Ok(values),
                other => Err(TensorError::Read { reason: format!("{} elements", other.dtype()) }),
            },
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use crate::TensorError;
    use crate::lend::cube::{on_device_thread, ordinal, resolve};
    use bonfire_comm::cuda::Pinned;
    use burn::tensor::Tensor;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
    use std::time::{Duration, Instant};

    pub(super) struct Copy {
        begun: Receiver<Result<Pinned, String>>,
    }

    impl Copy {
        pub(super) fn begin(flat: &Tensor<1>) -> Result<Self, TensorError> {
            let tensor = resolve(flat)?;
            let mut pinned = Pinned::new(ordinal(&tensor), tensor.meta.num_elements())?;
            let (sender, begun) = sync_channel(1);
            on_device_thread(&tensor, move |found| {
                let copied = found.and_then(|(resource, stream)| {
                    let pointer = resource.resource().ptr;
                    // SAFETY: the memory is the tensor's, of that many f32, and kept until the copy
                    // has ended; the stream is that of the device's thread, on which this runs.
                    unsafe { pinned.copy(pointer, stream, Box::new(resource)) }
                });
                // Whoever has dropped the copy does not want it.
                let _ = sender.send(copied.map(|()| pinned));
            });
            Ok(Self { begun })
        }

        pub(super) fn finish(self, patience: Duration) -> Result<Vec<f32>, TensorError> {
            let failed = |reason: String| TensorError::Read { reason };
            let deadline = Instant::now() + patience;
            let begun = self.begun.recv_timeout(patience);
            let begun = begun.map_err(|error| match error {
                RecvTimeoutError::Timeout => {
                    failed(format!("the device has not come to it within {patience:?}"))
                }
                RecvTimeoutError::Disconnected => failed("the device's thread has ended".into()),
            })?;
            let left = deadline.saturating_duration_since(Instant::now());
            begun.and_then(|pinned| pinned.read(left)).map_err(failed)
        }
    }
}
