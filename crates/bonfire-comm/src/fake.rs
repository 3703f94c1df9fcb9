//! A device engine without a device: its pointers are numbers, so that whoever takes one for
//! host memory crashes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::sync::lock;
use crate::work::WorkHandle;
use crate::{
    Buffer, Call, Capabilities, CommError, DeviceBuffer, Engine, HostBuffer, HostView, MemoryKind,
    Operation, ProcessGroup, Result, SubGroup, Transfer, Work, local,
};

/// The memory of a fake device, and what was asked of the device.
#[derive(Debug, Clone, Default)]
pub struct FakeDevice {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    memory: HashMap<u64, HostBuffer>,
    last: u64,
    started: Vec<(Operation, u64)>,
    waits: Vec<u64>,
}

impl FakeDevice {
    /// Puts data on the device.
    pub fn upload(&self, data: HostBuffer, stream: u64) -> DeviceBuffer {
        let mut state = lock(&self.state);
        state.last += 0x1000;
        let pointer = state.last;
        let (bytes, dtype, len) = (data.as_bytes().len(), data.dtype(), data.len());
        state.memory.insert(pointer, data);
        DeviceBuffer { pointer, bytes, stream, dtype, len, keep_alive: None }
    }

    /// Takes data off the device.
    ///
    /// # Errors
    /// [`CommError::Internal`] for a pointer that is not of this device or still in use.
    pub fn download(&self, buffer: &DeviceBuffer) -> Result<HostBuffer> {
        self.take(buffer.pointer)
    }

    /// Returns the operations that were started, with their pointers.
    pub fn started(&self) -> Vec<(Operation, u64)> {
        lock(&self.state).started.clone()
    }

    /// Returns the streams that were ordered behind an operation.
    pub fn waits(&self) -> Vec<u64> {
        lock(&self.state).waits.clone()
    }

    fn take(&self, pointer: u64) -> Result<HostBuffer> {
        lock(&self.state).memory.remove(&pointer).ok_or_else(|| CommError::Internal {
            detail: format!("no free device memory at {pointer:#x}"),
        })
    }
}

/// Runs `f` in a thread per rank, each with a group and a device of its own.
///
/// # Panics
/// As [`local::spawn`].
pub fn spawn<T: Send>(
    world_size: usize,
    f: impl Fn(ProcessGroup, FakeDevice) -> T + Send + Sync,
) -> Vec<T> {
    local::spawn(world_size, |group| {
        let device = FakeDevice::default();
        let timeout = group.timeout();
        let engine = FakeEngine { device: device.clone(), host: group.engine() };
        f(ProcessGroup::from_engine(Arc::new(engine), "world", timeout), device)
    })
}

/// Runs device operations by way of a host engine, which also serves the control plane.
struct FakeEngine {
    device: FakeDevice,
    host: Arc<dyn Engine>,
}

impl Engine for FakeEngine {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn world_size(&self) -> usize {
        self.host.world_size()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { memory: vec![MemoryKind::Device], ..Capabilities::host() }
    }

    fn start(&self, operation: Operation, buffer: Buffer, call: Call) -> Result<Work> {
        let buffer = buffer.into_device()?;
        let data = self.device.take(buffer.pointer)?;
        lock(&self.device.state).started.push((operation, buffer.pointer));
        let inner = self.host.start(operation, Buffer::Host(data), call)?;
        Ok(Work::new(FakeWork { inner, buffer, device: self.device.clone() }))
    }

    fn run(&self, operation: Operation, view: HostView<'_>, call: Call) -> Result<()> {
        self.host.run(operation, view, call)
    }

    fn run_batch(&self, transfers: Vec<Transfer<'_>>, call: Call) -> Result<()> {
        self.host.run_batch(transfers, call)
    }

    fn sub_group(&self, spec: SubGroup<'_>) -> Result<Arc<dyn Engine>> {
        let host = self.host.sub_group(spec)?;
        Ok(Arc::new(Self { device: self.device.clone(), host }))
    }

    fn abort(&self, reason: &str) {
        self.host.abort(reason);
    }
}

struct FakeWork {
    inner: Work,
    buffer: DeviceBuffer,
    device: FakeDevice,
}

impl WorkHandle for FakeWork {
    fn wait(self: Box<Self>) -> Result<Buffer> {
        let data = self.inner.wait()?.into_host()?;
        lock(&self.device.state).memory.insert(self.buffer.pointer, data);
        Ok(Buffer::Device(self.buffer))
    }

    fn wait_on(&self, stream: u64) -> Result<()> {
        lock(&self.device.state).waits.push(stream);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn abort(self: Box<Self>) {
        self.inner.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReduceOp, conformance};

    #[test]
    fn device_buffers_pass_the_conformance_table() {
        for size in 1..=3 {
            spawn(size, |group, device| {
                conformance::check_with(&group, &|group, operation, data| {
                    let buffer = device.upload(data, 1);
                    let done = group.start(operation, buffer.into())?.wait()?;
                    device.download(&done.into_device()?)
                });
            });
        }
    }

    #[test]
    fn streams_wait_and_what_lives_with_the_buffer_comes_back() {
        spawn(2, |group, device| {
            let group = group.duplicate("buckets").unwrap();
            let mut buffer = device.upload(vec![1f32; 3].into(), 5);
            buffer.keep_alive = Some(Box::new("alive"));
            let pointer = buffer.pointer;
            let work = group.start_all_reduce(buffer, ReduceOp::Sum).unwrap();
            work.wait_on(9).unwrap();
            let done = work.wait().unwrap().into_device().unwrap();
            assert_eq!((done.pointer, done.stream), (pointer, 5));
            assert!(done.keep_alive.as_ref().unwrap().is::<&str>());
            assert_eq!(device.download(&done).unwrap(), vec![2f32; 3].into());
            assert_eq!(device.waits(), [9]);
            assert_eq!(device.started(), [(Operation::AllReduce(ReduceOp::Sum), pointer)]);
        });
    }

    #[test]
    fn memory_that_the_engine_does_not_know_is_refused() {
        spawn(2, |group, _| {
            let error = group.start_all_reduce(vec![1f32], ReduceOp::Sum).unwrap_err();
            let text = "engine \"fake\" does not support host memory; choose another engine";
            assert_eq!(error.to_string(), text);
        });
    }
}
