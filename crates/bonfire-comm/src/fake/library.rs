//! Moves bytes between fake devices, by way of engine `local`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::FakeDevice;
use super::stream::Stream;
use crate::device::{Library, Memory, Progress, Seat};
use crate::device_buffer::DeviceEvent;
use crate::flight::{Record, Recorder};
use crate::group::deadline_after;
use crate::host_engine::HostEngine;
use crate::{Call, DType, Engine, HostView, Operation, SubGroup};

pub(super) struct FakeLibrary {
    device: FakeDevice,
}

impl FakeLibrary {
    pub(super) fn new(device: FakeDevice) -> Self {
        Self { device }
    }
}

pub(super) struct Comm {
    stream: Arc<Stream>,
    host: Arc<HostEngine>,
    given_up: Arc<AtomicBool>,
    /// Whether connections are made, which ends when all ranks have come to the operation.
    connecting: Arc<AtomicBool>,
    is_connected: Cell<bool>,
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn call(host: &HostEngine, operation: Operation, view: &HostView<'_>) -> Call {
    let recorder = Arc::new(Recorder::apart(host.rank(), host.world_size()));
    let key = recorder.register("fake", host.rank(), host.world_size());
    let site = std::panic::Location::caller();
    let record = Record::begin(&recorder, key, operation, view.dtype(), view.len(), site);
    Call { deadline: deadline_after(LONG), timeout: LONG, record }
}

/// Puts the first collective of a communicator on its stream when all ranks have come to it, as NCCL
/// does, which makes its connections then.
fn connect(comm: &Comm, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let (stream, host) = (comm.stream.clone(), comm.host.clone());
    let connecting = comm.connecting.clone();
    connecting.store(true, Ordering::SeqCst);
    let meet = move || {
        let view = HostView::Exclusive { bytes: &mut [], dtype: DType::U8 };
        let call = call(&host, Operation::Barrier, &view);
        // Who fails tells the device thread, too.
        let _ = host.run(Operation::Barrier, view, call);
        stream.push(work);
        connecting.store(false, Ordering::SeqCst);
    };
    let thread = std::thread::Builder::new().name("fake connection".into()).spawn(meet);
    thread.map(drop).map_err(|error| error.to_string())
}

impl Library for FakeLibrary {
    type Comm = Comm;

    const ENGINE: &'static str = "fake";
    const NAME: &'static str = "the fake library";
    const LOG: &'static str = "nothing";

    fn unique_id() -> Result<Vec<u8>, String> {
        Ok(b"fake".to_vec())
    }

    fn attach(&self) -> Result<(), String> {
        Ok(())
    }

    fn join(&self, seat: &Seat<'_>) -> Result<Comm, String> {
        assert_eq!(seat.id, b"fake");
        let members: Vec<usize> = (0..seat.size).collect();
        let identity = format!("{}/data", seat.identity);
        let spec =
            SubGroup { identity: &identity, members: &members, timeout: LONG, algorithm: None };
        let host = seat.companion.sub_engine(spec).map_err(|error| error.to_string())?;
        let given_up = Arc::new(AtomicBool::new(false));
        Ok(Comm {
            stream: Arc::new(Stream::new("fake lane")?),
            host: Arc::new(host),
            given_up,
            connecting: Arc::default(),
            is_connected: Cell::new(false),
        })
    }

    fn progress(&self, comm: &Comm) -> Progress {
        match self.device.breakdown() {
            Some(error) => Progress::Failed(error),
            None if comm.connecting.load(Ordering::SeqCst) => Progress::Busy,
            None => Progress::Settled,
        }
    }

    fn wait_for(&self, comm: &Comm, event: &dyn DeviceEvent) -> Result<(), String> {
        let event = self.device.event(event.raw());
        comm.stream.push(move || event.wait());
        Ok(())
    }

    fn enqueue(&self, comm: &Comm, operation: Operation, memory: Memory) -> Result<(), String> {
        let (device, host, given_up) =
            (self.device.clone(), comm.host.clone(), comm.given_up.clone());
        let ticket = device.launch(operation);
        let work = move || {
            device.wait_for_turn(ticket, &given_up);
            // Nothing is launched behind an abort.
            if given_up.load(Ordering::SeqCst) {
                return device.end_turn(ticket);
            }
            while device.hangs() && !given_up.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            device.with_memory(memory.pointer, |buffer| {
                assert_eq!((buffer.dtype(), buffer.len()), (memory.dtype, memory.len));
                let dtype = buffer.dtype();
                let view = match operation {
                    Operation::Send { .. } => HostView::Shared { bytes: buffer.as_bytes(), dtype },
                    _ => HostView::Exclusive { bytes: buffer.as_bytes_mut(), dtype },
                };
                let call = call(&host, operation, &view);
                // The session's failure, which the device thread sees, too: it ends the kernel, which
                // does not end by itself.
                let failed = host.run(operation, view, call).is_err();
                while failed && !given_up.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            device.end_turn(ticket);
        };
        let is_collective = !matches!(operation, Operation::Send { .. } | Operation::Recv { .. });
        if is_collective && !comm.is_connected.replace(true) {
            return connect(comm, work);
        }
        comm.stream.push(work);
        Ok(())
    }

    fn record(&self, comm: &Comm) -> Result<Arc<dyn DeviceEvent>, String> {
        Ok(self.device.register(comm.stream.record()))
    }

    fn elapsed(&self, from: &dyn DeviceEvent, to: &dyn DeviceEvent) -> Option<Duration> {
        let at = |event: &dyn DeviceEvent| self.device.event(event.raw()).at();
        Some(at(to)?.saturating_duration_since(at(from)?))
    }

    fn abort(&self, comms: Vec<Comm>) -> bool {
        comms.iter().for_each(|comm| comm.given_up.store(true, Ordering::SeqCst));
        // A connection that is being made hears of the failure, too. Then streams come to their ends.
        while comms.iter().any(|comm| Arc::strong_count(&comm.stream) > 1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(comms);
        true
    }

    fn leave(&self, _comm: &Comm) -> Result<(), String> {
        Ok(())
    }

    fn close(&self, comm: Comm) {
        drop(comm.stream);
    }
}
