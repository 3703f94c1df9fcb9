//! The memory of Burn's CUDA tensors.
//!
//! Burn's kernels are launched by a thread of its own for each device, in the order in which they were
//! submitted. What has to be known of a tensor's memory, and what its stream has to wait for, is a task
//! for that thread, too: no other has the stream.

use crate::TensorError;
use crate::host::wire_type;
use bonfire_comm::cuda::Event;
use bonfire_comm::{DeviceBuffer, DeviceEvent, Fence, Placement};
use burn::backend::{DispatchTensorKind, StreamId};
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeBackend};
use cubecl::cuda::CudaRuntime;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_server::runtime::Runtime;
use cubecl_server::server::ServerStorage;
use cubecl_server::storage::{ComputeStorage, ManagedResource};
use cubecl_server::stream::WriteScoped;
use std::sync::Arc;

/// What launches the kernels of a device. Its own path is private.
type Server = <CudaRuntime as Runtime>::Server;
/// An address of the device, and what keeps it from being given to anybody else.
type Resource = ManagedResource<<<Server as ServerStorage>::Storage as ComputeStorage>::Resource>;

/// Whether a tensor lies on a GPU of NVIDIA.
pub(crate) fn is_cuda(flat: &Tensor<1>) -> bool {
    matches!(flat.clone().into_dispatch().kind, DispatchTensorKind::Cube(_))
}

/// The tensor without fusion: what was to be computed lazily is submitted.
pub(crate) fn resolve(flat: &Tensor<1>) -> Result<CubeTensor, TensorError> {
    let fused = flat
        .clone()
        .try_into_primitive::<Cube>()
        .map_err(|error| TensorError::Read { reason: format!("{error:?}") })?;
    Ok(fused.client.clone().resolve_tensor_float::<CubeBackend>(fused))
}

/// Number of the tensor's GPU.
pub(crate) fn ordinal(tensor: &CubeTensor) -> usize {
    usize::from(tensor.client.service_id().device.index_id)
}

/// Describes a tensor's memory for a collective: the device's thread tells where it lies, and marks the
/// work that fills it.
pub(super) fn lend(flat: &Tensor<1>) -> Result<DeviceBuffer, TensorError> {
    let tensor = resolve(flat)?;
    let len = tensor.meta.num_elements();
    if !tensor.is_contiguous() {
        let reason = "a tensor that is lent has to be flat".to_string();
        return Err(TensorError::Read { reason });
    }
    let (buffer, placer) = DeviceBuffer::awaited(wire_type(tensor.dtype, "a tensor")?, len);
    let ready = Event::new(ordinal(&tensor))?;
    on_device_thread(&tensor, move |found| {
        placer.place(found.and_then(|(resource, stream)| {
            // SAFETY: the stream is that of the device's thread, on which this runs, with its context.
            unsafe { ready.record(stream) }?;
            let ready: Arc<dyn DeviceEvent> = Arc::new(ready);
            let pointer = resource.resource().ptr;
            Ok(Placement { pointer, ready: Some(ready), keep_alive: Some(Box::new(resource)) })
        }));
    });
    Ok(buffer)
}

/// Makes work on a tensor that is submitted from now on wait for a collective.
pub(super) fn order_behind(flat: &Tensor<1>, fence: Fence) -> Result<(), TensorError> {
    let tensor = resolve(flat)?;
    on_device_thread(&tensor, move |found| {
        let waits = found.and_then(|(_resource, stream)| {
            // The device's thread waits until the collective is on its stream, not for its end.
            let done = fence.launched().map_err(|error| error.to_string())?;
            // SAFETY: as above; the event has been recorded.
            unsafe { Event::make_wait(stream, done.as_ref()) }
        });
        if let Err(error) = waits {
            // The session has failed: its next call says so.
            tracing::error!(error, "a tensor is used without the collective on it");
        }
    });
    Ok(())
}

/// Runs a task on the thread that launches kernels, behind all that were submitted, with the tensor's
/// memory and the raw stream of its kernels; or with the reason why there is no such memory: the
/// kernels before have failed, or the device has no room for it.
pub(crate) fn on_device_thread(
    tensor: &CubeTensor,
    task: impl FnOnce(Result<(Resource, u64), String>) + Send + 'static,
) {
    let device = DeviceHandle::<Server>::new(tensor.client.service_id().device);
    let stream = StreamId::current();
    let binding = tensor.handle.clone().binding();
    device.submit(move |server: &mut Server| {
        let resource = server.get_resource(binding, stream).map_err(|error| error.to_string());
        task(resource.and_then(|resource| {
            let found = server.write_streams().try_stream_mut(&stream).map(|it| it.sys as u64);
            Ok((resource, found.ok_or("its stream is gone")?))
        }));
    });
    device.flush_queue();
}
