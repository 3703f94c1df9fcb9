//! The memory and the main stream of a fake device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use super::stream::{Event, Stream};
use crate::device_buffer::DeviceEvent;
use crate::sync::lock;
use crate::{CommError, DeviceBuffer, Fence, HostBuffer, Operation, Placement, Result};

thread_local! {
    static CURRENT: RefCell<Option<FakeDevice>> = const { RefCell::new(None) };
}

/// A device whose memory the host cannot touch. Clones are the same device.
#[derive(Clone)]
pub struct FakeDevice {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Mutex<HashMap<u64, HostBuffer>>,
    last: AtomicU64,
    /// What the caller's kernels run on.
    main: Stream,
    events: Mutex<HashMap<u64, Arc<Event>>>,
    operations: Mutex<Vec<Operation>>,
    faults: Mutex<Vec<String>>,
    /// Collectives take turns by the order of their launches.
    launched: AtomicU64,
    turn: Mutex<u64>,
    turned: Condvar,
    pub(super) hangs: AtomicBool,
    pub(super) fails: Mutex<Option<String>>,
}

/// Gives memory back.
struct Allocation {
    device: FakeDevice,
    pointer: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        lock(&self.device.inner.memory).remove(&self.pointer);
    }
}

impl Default for FakeDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeDevice {
    /// Makes a device with no memory in use.
    ///
    /// # Panics
    /// When the system has no thread for it.
    #[allow(clippy::panic, reason = "a test reports by panicking")]
    pub fn new() -> Self {
        let main = Stream::new("fake main").unwrap_or_else(|error| panic!("{error}"));
        Self {
            inner: Arc::new(Inner {
                memory: Mutex::default(),
                last: AtomicU64::new(0),
                main,
                events: Mutex::default(),
                operations: Mutex::default(),
                faults: Mutex::default(),
                launched: AtomicU64::new(0),
                turn: Mutex::new(0),
                turned: Condvar::new(),
                hangs: AtomicBool::new(false),
                fails: Mutex::default(),
            }),
        }
    }

    /// Makes it the device of this thread.
    pub(super) fn enter(&self) {
        CURRENT.set(Some(self.clone()));
    }

    /// The device of this rank, which is a thread.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Puts data on the device, at once.
    pub fn upload(&self, data: HostBuffer) -> DeviceBuffer {
        let (dtype, len) = (data.dtype(), data.len());
        let (pointer, allocation) = self.allocate(data);
        let keep_alive: Option<Box<dyn std::any::Any + Send>> = Some(Box::new(allocation));
        DeviceBuffer::new(dtype, len, Placement { pointer, ready: None, keep_alive })
    }

    /// Puts data on the device by work of the main stream, which takes `time`; until then the
    /// memory holds zeros. Returns at once.
    pub fn produce(&self, data: HostBuffer, time: Duration) -> DeviceBuffer {
        let (dtype, len) = (data.dtype(), data.len());
        let (pointer, keep_alive) = self.allocate(HostBuffer::zeros(dtype, len));
        let (buffer, placer) = DeviceBuffer::awaited(dtype, len);
        let (device, keep_alive) = (self.clone(), Arc::new(keep_alive));
        // Memory is given back in the order of the stream: not before it has been filled.
        let filled = keep_alive.clone();
        self.inner.main.push(move || {
            std::thread::sleep(time);
            device.with_memory(pointer, |memory| *memory = data);
            drop(filled);
        });
        let keep_alive: Option<Box<dyn std::any::Any + Send>> = Some(Box::new(keep_alive));
        let ready = self.inner.main.record();
        let ready: Option<Arc<dyn DeviceEvent>> = Some(self.register(ready));
        placer.place(Ok(Placement { pointer, ready, keep_alive }));
        buffer
    }

    /// Reads a buffer by work of the main stream that waits for `fence`, and keeps the memory until
    /// then. Returns at once.
    pub fn consume(&self, pointer: u64, fence: Fence) -> Receiver<Result<HostBuffer>> {
        let (reply, answer) = bounded(1);
        let device = self.clone();
        self.inner.main.push(move || {
            let result = fence.launched().and_then(|done| {
                device.event(done.raw()).wait();
                device.read(pointer)
            });
            // A test that has failed does not listen.
            let _ = reply.send(result);
        });
        answer
    }

    /// Takes data off the device.
    ///
    /// # Errors
    /// [`CommError::Device`] for memory that the device does not have (any more).
    pub fn download(&self, buffer: &mut DeviceBuffer) -> Result<HostBuffer> {
        let pointer = buffer.placement(Duration::ZERO)?.pointer;
        self.read(pointer)
    }

    /// From now on no collective of this device ends.
    pub fn hang(&self) {
        self.inner.hangs.store(true, Ordering::SeqCst);
    }

    /// From now on the library reports this error.
    pub fn break_down(&self, error: &str) {
        *lock(&self.inner.fails) = Some(error.to_owned());
    }

    /// The operations that were launched, in that order.
    pub fn operations(&self) -> Vec<Operation> {
        lock(&self.inner.operations).clone()
    }

    /// Uses of memory that had been given back.
    pub fn faults(&self) -> Vec<String> {
        lock(&self.inner.faults).clone()
    }

    /// Buffers in use.
    pub fn num_allocations(&self) -> usize {
        lock(&self.inner.memory).len()
    }

    fn allocate(&self, data: HostBuffer) -> (u64, Allocation) {
        let pointer = self.inner.last.fetch_add(0x1000, Ordering::Relaxed) + 0x1000;
        lock(&self.inner.memory).insert(pointer, data);
        (pointer, Allocation { device: self.clone(), pointer })
    }

    fn read(&self, pointer: u64) -> Result<HostBuffer> {
        let memory = lock(&self.inner.memory);
        memory.get(&pointer).cloned().ok_or_else(|| CommError::Device {
            what: "read a buffer".into(),
            detail: format!("no memory at {pointer:#x}"),
        })
    }

    /// Works on memory as a kernel does.
    pub(super) fn with_memory(&self, pointer: u64, work: impl FnOnce(&mut HostBuffer)) {
        // Not under the lock: a collective waits for other ranks.
        let found = lock(&self.inner.memory).get(&pointer).cloned();
        let Some(mut memory) = found else {
            lock(&self.inner.faults).push(format!("kernel on free memory at {pointer:#x}"));
            return;
        };
        work(&mut memory);
        match lock(&self.inner.memory).get_mut(&pointer) {
            Some(place) => *place = memory,
            None => lock(&self.inner.faults).push(format!("memory at {pointer:#x} freed in use")),
        }
    }

    pub(super) fn register(&self, event: Arc<Event>) -> Arc<Event> {
        lock(&self.inner.events).insert(event.raw(), event.clone());
        event
    }

    #[allow(clippy::panic, reason = "a test reports by panicking")]
    pub(super) fn event(&self, raw: u64) -> Arc<Event> {
        let found = lock(&self.inner.events).get(&raw).cloned();
        found.unwrap_or_else(|| panic!("no event {raw}"))
    }

    pub(super) fn launch(&self, operation: Operation) -> u64 {
        lock(&self.inner.operations).push(operation);
        self.inner.launched.fetch_add(1, Ordering::SeqCst)
    }

    /// Waits until all collectives that were launched before have ended.
    pub(super) fn wait_for_turn(&self, ticket: u64, given_up: &AtomicBool) {
        let mut turn = lock(&self.inner.turn);
        while *turn != ticket && !given_up.load(Ordering::SeqCst) {
            let wait = Duration::from_millis(5);
            let waited = self.inner.turned.wait_timeout(turn, wait);
            turn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn end_turn(&self, ticket: u64) {
        let mut turn = lock(&self.inner.turn);
        *turn = (*turn).max(ticket + 1);
        self.inner.turned.notify_all();
    }

    pub(super) fn hangs(&self) -> bool {
        self.inner.hangs.load(Ordering::SeqCst)
    }

    pub(super) fn breakdown(&self) -> Option<String> {
        lock(&self.inner.fails).clone()
    }
}
