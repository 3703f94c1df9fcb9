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
    /// How many were started before it in the session.
    pub(super) index: u64,
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

/// An operation that the library was given.
pub(super) struct InFlight {
    pub(super) job: Job,
    pub(super) header: Header,
    begun: Arc<dyn DeviceEvent>,
    /// None until the library has put it on the stream: see [`Lane::settle`].
    done: Option<Arc<dyn DeviceEvent>>,
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

    /// Gives the library the job at the front, unless its buffer is still to be placed.
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
        let begun = (|| {
            if let Some(ready) = &ready {
                library.wait_for(comm, ready.as_ref())?;
            }
            let begun = library.record(comm)?;
            library.enqueue(comm, job.operation, memory)?;
            Ok(begun)
        })();
        let begun = match begun.map_err(failed) {
            Ok(begun) => begun,
            Err(error) => {
                self.queue.push_front(job);
                return Err(error);
            }
        };
        job.call.record.started(header.sequence());
        self.bytes_sent.fetch_add(self.numbers.payload(job.operation, memory), Ordering::Relaxed);
        if header.is_collective() {
            *lock(&self.entered) = Some(header);
        }
        self.numbers.count(job.operation, header);
        let is_confirmed = !header.is_collective();
        self.in_flight.push_back(InFlight { job, header, begun, done: None, is_confirmed });
        Ok(Some((header, deadline)))
    }

    /// Whether the library has still to put an operation on the stream, as it does when it makes
    /// connections on the way: that takes until the other ranks come to the same operation.
    pub(super) fn is_launching(&self) -> bool {
        self.in_flight.back().is_some_and(|last| last.done.is_none())
    }

    /// Notes that an operation is on the stream, if it has come to that.
    pub(super) fn settle(&mut self, library: &L) -> Result<()> {
        if !self.is_launching() {
            return Ok(());
        }
        let (Some(comm), Some(last)) = (&self.comm, self.in_flight.back()) else { return Ok(()) };
        let done = match library.progress(comm) {
            Progress::Busy => return Ok(()),
            Progress::Failed(detail) => Err(detail),
            Progress::Settled => library.record(comm),
        };
        let done = done.map_err(|detail| self.failure_of(&last.header, detail))?;
        if let Some(last) = self.in_flight.back_mut() {
            last.job.status.set(Launch::Launched(done.clone()));
            last.done = Some(done);
        }
        Ok(())
    }

    /// Hands back what the device is through with.
    pub(super) fn finish(&mut self, library: &L) -> Result<()> {
        while let Some(first) = self.in_flight.front() {
            let Some(done) = first.done.clone() else { return Ok(()) };
            let complete = done.is_complete();
            let complete = complete.map_err(|detail| self.failure_of(&first.header, detail))?;
            if !complete || !first.is_confirmed {
                return Ok(());
            }
            // A library that has failed may have let its kernels end.
            if let Some(Progress::Failed(detail)) =
                self.comm.as_ref().map(|it| library.progress(it))
            {
                return Err(self.failure_of(&first.header, detail));
            }
            let Some(InFlight { job, begun, .. }) = self.in_flight.pop_front() else {
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

    /// The oldest job that has not come to its end. Once the library itself has failed, that it has
    /// ended says nothing: its kernels may have been let go.
    pub(super) fn first_unfinished(&self, library: &L) -> Option<u64> {
        let progress = self.comm.as_ref().map(|comm| library.progress(comm));
        let is_sound = !matches!(progress, Some(Progress::Failed(_)));
        let has_ended = |one: &InFlight| {
            let done = one.done.as_ref();
            is_sound && done.is_some_and(|done| done.is_complete() == Ok(true))
        };
        let launched = self.in_flight.iter().find(|one| !has_ended(one)).map(|one| one.job.index);
        launched.or_else(|| self.queue.front().map(|job| job.index))
    }

    /// Tells whoever waits that everything is given up, and returns what the device may still use.
    pub(super) fn fail(&mut self, error: &CommError) -> (Option<L::Comm>, Vec<InUse>) {
        let in_flight = self.in_flight.drain(..);
        let in_use = in_flight
            .map(|InFlight { job, begun, done, .. }| InUse {
                _buffer: job.fail(error),
                _begun: begun,
                _done: done,
            })
            .collect();
        self.queue.drain(..).for_each(|job| drop(job.fail(error)));
        (self.comm.take(), in_use)
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

/// What a device may write to or come to after a failure.
pub(super) struct InUse {
    _buffer: DeviceBuffer,
    _begun: Arc<dyn DeviceEvent>,
    _done: Option<Arc<dyn DeviceEvent>>,
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
