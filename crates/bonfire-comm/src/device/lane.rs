//! The operations of one group on the device thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::library::{Library, Memory, Progress};
use crate::device_buffer::DeviceEvent;
use crate::header::Header;
use crate::host_engine::HostEngine;
use crate::membership::Entered;
use crate::sync::lock;
use crate::{Buffer, Call, CommError, DeviceBuffer, Engine, Operation, Result};

/// How a started operation is doing, as its [`Work`](crate::Work) sees it.
#[derive(Default)]
pub(super) struct Status {
    launch: Mutex<Launch>,
    changed: Condvar,
    /// Whether somebody waits for the end on the host.
    pub(super) is_urgent: AtomicBool,
}

#[derive(Default)]
enum Launch {
    #[default]
    Queued,
    Launched(Arc<dyn DeviceEvent>),
    Failed(CommError),
}

impl Status {
    fn set(&self, launch: Launch) {
        *lock(&self.launch) = launch;
        self.changed.notify_all();
    }

    pub(super) fn fail(&self, error: &CommError) {
        self.set(Launch::Failed(error.clone()));
    }

    /// Waits until the operation is on the stream; `None` when it was not by `deadline`.
    pub(super) fn wait(&self, deadline: Instant) -> Option<Result<Arc<dyn DeviceEvent>>> {
        let mut launch = lock(&self.launch);
        loop {
            match &*launch {
                Launch::Launched(done) => return Some(Ok(done.clone())),
                Launch::Failed(error) => return Some(Err(error.clone())),
                Launch::Queued => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            launch =
                self.changed.wait_timeout(launch, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An operation that was started.
pub(super) struct Job {
    pub(super) operation: Operation,
    pub(super) buffer: DeviceBuffer,
    pub(super) call: Call,
    pub(super) status: Arc<Status>,
    pub(super) done: Sender<Result<Buffer>>,
}

impl Job {
    /// Tells whoever waits, and returns the buffer.
    pub(super) fn fail(self, error: &CommError) -> DeviceBuffer {
        self.status.fail(error);
        self.call.record.finished(Some(error));
        // Nobody listens when the work was dropped.
        let _ = self.done.send(Err(error.clone()));
        self.buffer
    }
}

/// An operation on the stream.
pub(super) struct InFlight {
    pub(super) job: Job,
    pub(super) header: Header,
    begun: Arc<dyn DeviceEvent>,
    done: Arc<dyn DeviceEvent>,
    /// Whether the leader has launched the same operation, as far as it matters.
    pub(super) is_confirmed: bool,
}

/// The device thread's side of an engine.
pub(super) struct Lane<L: Library> {
    /// None after a failure.
    pub(super) comm: Option<L::Comm>,
    pub(super) identity: String,
    pub(super) companion: Arc<HostEngine>,
    /// Which [`Conductor`](super::conductor::Conductor) orders it.
    pub(super) conductor: u64,
    pub(super) queue: VecDeque<Job>,
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) numbers: Numbers,
    pub(super) entered: Entered,
    pub(super) bytes_sent: Arc<AtomicU64>,
}

impl<L: Library> Lane<L> {
    /// The header of the job at the front.
    pub(super) fn next_header(&self) -> Option<Header> {
        let job = self.queue.front()?;
        Some(self.numbers.header(job.operation, &job.buffer))
    }

    /// Puts the job at the front on the stream.
    pub(super) fn launch(&mut self, library: &L) -> Result<Option<(Header, Instant)>> {
        let (Some(comm), Some(mut job)) = (&self.comm, self.queue.pop_front()) else {
            return Ok(None);
        };
        let header = self.numbers.header(job.operation, &job.buffer);
        let deadline = job.call.deadline;
        let (dtype, len) = (job.buffer.dtype(), job.buffer.len());
        let failed = |detail: String| self.failure_of(&header, detail);
        let placement = match job.buffer.try_placement() {
            Ok(Some(placement)) => placement,
            Ok(None) => {
                self.queue.push_front(job);
                return Ok(None);
            }
            Err(error) => {
                self.queue.push_front(job);
                return Err(error);
            }
        };
        let memory = Memory { pointer: placement.pointer, dtype, len };
        let ready = placement.ready.clone();
        let result = (|| {
            if let Some(ready) = &ready {
                library.wait_for(comm, ready.as_ref())?;
            }
            let begun = library.record(comm)?;
            library.enqueue(comm, job.operation, memory)?;
            settle(library, comm, self.companion.as_ref(), deadline)?;
            Ok((begun, library.record(comm)?))
        })();
        let (begun, done) = match result.map_err(failed) {
            Ok(events) => events,
            Err(error) => {
                self.queue.push_front(job);
                return Err(error);
            }
        };
        job.call.record.started(header.sequence());
        job.status.set(Launch::Launched(done.clone()));
        self.bytes_sent.fetch_add(self.numbers.payload(job.operation, memory), Ordering::Relaxed);
        if header.is_collective() {
            *lock(&self.entered) = Some(header);
        }
        self.numbers.count(job.operation, header);
        let is_confirmed = !header.is_collective();
        self.in_flight.push_back(InFlight { job, header, begun, done, is_confirmed });
        Ok(Some((header, deadline)))
    }

    /// Hands back what the device is through with.
    pub(super) fn finish(&mut self, library: &L) -> Result<()> {
        while let Some(first) = self.in_flight.front() {
            let complete = first.done.is_complete();
            let complete = complete.map_err(|detail| self.failure_of(&first.header, detail))?;
            if !complete || !first.is_confirmed {
                return Ok(());
            }
            let Some(InFlight { job, begun, done, .. }) = self.in_flight.pop_front() else {
                return Ok(());
            };
            let Job { buffer, call, done: reply, .. } = job;
            if let Some(time) = library.elapsed(begun.as_ref(), done.as_ref()) {
                call.record.on_device(time);
            }
            call.record.finished(None);
            // Nobody listens when the work was dropped.
            let _ = reply.send(Ok(Buffer::Device(buffer.settled())));
        }
        Ok(())
    }

    /// The oldest operation that was asked for and has not ended, and whether it is on the stream.
    pub(super) fn oldest(&self) -> Option<(&Job, Header, bool)> {
        match self.in_flight.front() {
            Some(first) => Some((&first.job, first.header, true)),
            None => Some((self.queue.front()?, self.next_header()?, false)),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }

    /// Gives everything up.
    pub(super) fn fail(&mut self, library: &L, error: &CommError) {
        let quiet = self.comm.take().is_none_or(|comm| library.abort(comm));
        for InFlight { job, begun, done, .. } in self.in_flight.drain(..) {
            let buffer = job.fail(error);
            if !quiet {
                // Memory that the device may still write to is never given to anybody else.
                std::mem::forget((buffer, begun, done));
            }
        }
        self.queue.drain(..).for_each(|job| drop(job.fail(error)));
    }

    pub(super) fn failure_of(&self, header: &Header, detail: String) -> CommError {
        CommError::Library {
            group: self.identity.clone(),
            rank: self.companion.rank(),
            library: L::NAME,
            operation: header.to_string(),
            detail,
        }
    }
}

/// Waits until the library's host side is through with its calls, which takes long only when
/// connections are made on the way.
pub(super) fn settle<L: Library>(
    library: &L,
    comm: &L::Comm,
    companion: &HostEngine,
    deadline: Instant,
) -> Result<(), String> {
    for turn in 0u32.. {
        match library.progress(comm) {
            Progress::Settled => break,
            Progress::Failed(detail) => return Err(detail),
            Progress::Busy => {}
        }
        if let Some(failure) = companion.failure() {
            return Err(failure.to_string());
        }
        if Instant::now() >= deadline {
            return Err("its host side did not come to an end before the deadline".into());
        }
        match turn {
            ..100 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(200)),
        }
    }
    Ok(())
}

/// Numbers the operations of a group, as the engine on host memory does.
pub(super) struct Numbers {
    rank: usize,
    size: usize,
    group: u32,
    pub(super) collectives: u64,
    last: Option<Header>,
    /// Messages sent to and received from each rank.
    messages: Vec<(u64, u64)>,
}

impl Numbers {
    pub(super) fn new(rank: usize, size: usize, group: u32) -> Self {
        Self { rank, size, group, collectives: 0, last: None, messages: vec![(0, 0); size] }
    }

    fn header(&self, operation: Operation, buffer: &DeviceBuffer) -> Header {
        let sequence = match operation {
            Operation::Send { to } => self.messages[to].0,
            Operation::Recv { from } => self.messages[from].1,
            _ => self.collectives,
        };
        // A gather and a scatter are described by the part of one rank, also at the root.
        let count = match operation {
            Operation::Gather { root } | Operation::Scatter { root } if root == self.rank => {
                buffer.len() / self.size
            }
            _ => buffer.len(),
        };
        let header = Header::new(operation, self.rank, buffer.dtype(), count, sequence, self.group);
        if header.is_collective() { header.after(self.last.as_ref()) } else { header }
    }

    fn count(&mut self, operation: Operation, header: Header) {
        match operation {
            Operation::Send { to } => self.messages[to].0 += 1,
            Operation::Recv { from } => self.messages[from].1 += 1,
            _ => {
                self.collectives += 1;
                self.last = Some(header);
            }
        }
    }

    /// Bytes that this rank sends at least, whichever way the library takes.
    fn payload(&self, operation: Operation, memory: Memory) -> u64 {
        let bytes = (memory.len * memory.dtype.size_bytes()) as u64;
        let (rank, size) = (self.rank, self.size as u64);
        match operation {
            Operation::AllReduce(_) => 2 * bytes * (size - 1) / size,
            Operation::AllGather | Operation::ReduceScatter(_) | Operation::AllToAll => {
                bytes * (size - 1) / size
            }
            Operation::Broadcast { root } if root == rank && size > 1 => bytes,
            Operation::Scatter { root } if root == rank => bytes * (size - 1) / size,
            Operation::Reduce { root, .. } | Operation::Gather { root } if root != rank => bytes,
            Operation::Send { .. } => bytes,
            _ => 0,
        }
    }
}
