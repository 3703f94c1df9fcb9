//! What a process group calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use xxhash_rust::xxh3::xxh3_64;

use super::driver::{Command, Driver, WHOLE, progress_key};
use super::groups::Join;
use super::lane::{Job, Status};
use super::library::Library;
use super::shared::Shared;
use crate::device_buffer::DeviceEvent;
use crate::flight::Recorder;
use crate::group::deadline_after;
use crate::host_engine::HostEngine;
use crate::membership::Entered;
use crate::sync::lock;
use crate::work::WorkHandle;
use crate::{
    Buffer, Call, Capabilities, CommError, DType, Engine, HostBuffer, HostView, MemoryKind,
    Operation, OperationKind, ProcessGroup, Result, SubGroup, Transfer, Work,
};

/// Time that the device thread may take after a deadline to find out which ranks are missing.
const EXPLAIN: Duration = Duration::from_secs(10);
/// Time that an engine that is dropped waits for its last operations, and the last one for the
/// connections.
const GOODBYE: Duration = Duration::from_secs(6);
const WORLD: &str = "world";

/// Makes the world over devices, from the world over host memory.
///
/// # Collective
/// Called by all ranks of `world`, each with its own device.
pub(crate) fn open<L: Library>(
    world: Arc<HostEngine>,
    library: L,
    timeout: Duration,
) -> Result<ProcessGroup> {
    let shared = Arc::new(Shared::default());
    let (commands, received) = unbounded();
    let (ranks, latch) = (world.clone(), shared.clone());
    let (end, ended) = bounded(0);
    std::thread::Builder::new()
        .name(format!("comm {}", L::NAME))
        .spawn(move || {
            let _end: Sender<()> = end;
            Driver::new(library, ranks, latch, received).run();
        })
        .map_err(|error| CommError::system("start the device thread", &error))?;
    let order = order_of(&world, WORLD, timeout)?;
    let session = Arc::new(Session {
        engine: L::ENGINE,
        unique_id: L::unique_id,
        world_size: world.world_size(),
        order,
        shared,
        commands: Some(commands),
        ended,
    });
    let engine = DeviceEngine::new(session, world, WORLD, timeout);
    Ok(ProcessGroup::from_engine(Arc::new(engine), WORLD, timeout))
}

/// What carries the order of a group's operations.
///
/// # Collective
/// All ranks of `companion`.
fn order_of(companion: &HostEngine, identity: &str, timeout: Duration) -> Result<Arc<HostEngine>> {
    let identity = format!("{identity}/order");
    let members: Vec<usize> = (0..companion.world_size()).collect();
    let spec = SubGroup { identity: &identity, members: &members, timeout, algorithm: None };
    Ok(Arc::new(companion.sub_engine(spec)?))
}

/// What all engines of a device share.
struct Session {
    engine: &'static str,
    unique_id: fn() -> Result<Vec<u8>, String>,
    world_size: usize,
    /// The order of all groups that have every rank.
    order: Arc<HostEngine>,
    shared: Arc<Shared>,
    /// None when the last engine is gone.
    commands: Option<Sender<Command>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Session {
    fn send(&self, command: Command) -> Result<()> {
        let sent = self.commands.as_ref().is_some_and(|to| to.send(command).is_ok());
        let ended = || CommError::Internal { detail: "the device thread has ended".into() };
        sent.then_some(()).ok_or_else(ended)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A process that ended now would leave the other ranks with connections that break.
        self.commands = None;
        if self.ended.recv_timeout(GOODBYE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the connections between devices do not end");
        }
    }
}

/// The engine of one rank in one group.
pub(super) struct DeviceEngine {
    session: Arc<Session>,
    companion: Arc<HostEngine>,
    identity: String,
    timeout: Duration,
    /// The device thread's side of it, from the first operation on.
    lane: OnceLock<u64>,
    joining: Mutex<()>,
    /// The last collective that was launched.
    entered: Entered,
    bytes_sent: Arc<AtomicU64>,
}

impl DeviceEngine {
    fn new(
        session: Arc<Session>,
        companion: Arc<HostEngine>,
        identity: &str,
        timeout: Duration,
    ) -> Self {
        let (identity, bytes_sent) = (identity.to_owned(), Arc::new(AtomicU64::new(0)));
        let (lane, joining) = (OnceLock::new(), Mutex::new(()));
        // Others may ask how far this rank is before it has come to the first operation.
        let entered = Entered::default();
        companion.membership().register(&progress_key(&identity), entered.clone());
        Self { session, companion, identity, timeout, lane, joining, entered, bytes_sent }
    }

    /// The lane, which is made when it is first asked for: connections between devices take time
    /// and memory, and many groups have no use for them.
    ///
    /// # Collective
    /// All ranks, the first time.
    fn lane(&self) -> Result<u64> {
        let _one_at_a_time = lock(&self.joining);
        match self.lane.get() {
            Some(lane) => Ok(*lane),
            None => {
                let lane = self.join()?;
                Ok(*self.lane.get_or_init(|| lane))
            }
        }
    }

    /// Connects the ranks over their devices.
    fn join(&self) -> Result<u64> {
        let Self { session, companion, identity, timeout, .. } = self;
        let deadline = deadline_after(*timeout);
        let id = agree_on_id(session.unique_id, companion, identity, *timeout)?;
        let lane = session.shared.lanes.fetch_add(1, Ordering::Relaxed) + 1;
        let (conductor, order) = match companion.world_size() == session.world_size {
            true => (WHOLE, session.order.clone()),
            false => (lane, order_of(companion, identity, *timeout)?),
        };
        let (reply, answer) = bounded(1);
        session.send(Command::Join(Join {
            lane,
            identity: identity.clone(),
            group: xxh3_64(identity.as_bytes()) as u32,
            id,
            companion: companion.clone(),
            conductor,
            order,
            entered: self.entered.clone(),
            bytes_sent: self.bytes_sent.clone(),
            deadline,
            timeout: *timeout,
            reply,
        }))?;
        match answer.recv_deadline(deadline + EXPLAIN) {
            Ok(result) => result.map(|()| lane),
            Err(RecvTimeoutError::Timeout) => Err(stuck("the creation of a group")),
            Err(RecvTimeoutError::Disconnected) => Err(stuck("the creation of a group: it ended")),
        }
    }

    fn failure_now(&self) -> Option<CommError> {
        self.session.shared.failure().or_else(|| self.companion.failure())
    }
}

/// The device thread hangs in a call that should have come back.
fn stuck(what: &str) -> CommError {
    CommError::Internal { detail: format!("the device thread does not come back from {what}") }
}

/// Gives all ranks the id that rank 0 makes.
///
/// # Collective
/// All ranks of `companion`.
pub(crate) fn agree_on_id(
    unique_id: impl Fn() -> Result<Vec<u8>, String>,
    companion: &HostEngine,
    identity: &str,
    timeout: Duration,
) -> Result<Vec<u8>> {
    /// Room for an id, or for the words why there is none, behind a flag and a length.
    const ROOM: usize = 1024;
    let mut message = vec![0u8; ROOM];
    if companion.rank() == 0 {
        let made = unique_id();
        let (flag, bytes) = match &made {
            Ok(id) => (0u8, id.as_slice()),
            Err(reason) => (1u8, reason.as_bytes()),
        };
        let bytes = &bytes[..bytes.len().min(ROOM - 3)];
        message[0] = flag;
        message[1..3].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
        message[3..3 + bytes.len()].copy_from_slice(bytes);
    }
    let view = HostView::Exclusive { bytes: &mut message, dtype: DType::U8 };
    let operation = Operation::Broadcast { root: 0 };
    companion.run(operation, view, unrecorded(companion, operation, ROOM, timeout))?;
    let len = usize::from(u16::from_le_bytes([message[1], message[2]])).min(ROOM - 3);
    let bytes = message[3..3 + len].to_vec();
    match message[0] {
        0 => Ok(bytes),
        _ => Err(CommError::Library {
            group: identity.to_owned(),
            rank: 0,
            library: "the library between devices",
            operation: "creation of the group".into(),
            detail: String::from_utf8_lossy(&bytes).into_owned(),
        }),
    }
}

/// A call that is the engine's own and not the user's.
fn unrecorded(
    companion: &HostEngine,
    operation: Operation,
    count: usize,
    timeout: Duration,
) -> Call {
    let recorder = Arc::new(Recorder::apart(companion.rank(), companion.world_size()));
    let key = recorder.register("introduction", companion.rank(), companion.world_size());
    let site = std::panic::Location::caller();
    let record = crate::flight::Record::begin(&recorder, key, operation, DType::U8, count, site);
    Call { deadline: deadline_after(timeout), timeout, record }
}

impl Engine for DeviceEngine {
    fn name(&self) -> &'static str {
        self.session.engine
    }

    fn rank(&self) -> usize {
        self.companion.rank()
    }

    fn world_size(&self) -> usize {
        self.companion.world_size()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            memory: vec![MemoryKind::Host, MemoryKind::Device],
            dtypes: DType::ALL.to_vec(),
            operations: OperationKind::ALL.to_vec(),
            blocking_host_calls: true,
        }
    }

    fn start(&self, operation: Operation, buffer: Buffer, call: Call) -> Result<Work> {
        if let Some(failure) = self.failure_now() {
            return Err(failure.heard_in(self.companion.membership().rank(), operation));
        }
        let buffer = match buffer {
            // A barrier is of the ranks, not of their devices.
            Buffer::Device(device) if operation == Operation::Barrier => {
                let work =
                    self.companion.start(operation, HostBuffer::U8(Vec::new()).into(), call)?;
                return Ok(Work::new(Passed { work, device }));
            }
            Buffer::Device(device) => device,
            host @ Buffer::Host(_) => return self.companion.start(operation, host, call),
        };
        let lane = self.lane()?;
        let status = Arc::new(Status::default());
        let (done, receiver) = bounded(1);
        let (deadline, what) = (call.deadline, operation.to_string());
        let index = self.session.shared.started.fetch_add(1, Ordering::SeqCst);
        let job = Job { index, operation, buffer, call, status: status.clone(), done };
        self.session.send(Command::Start(lane, job))?;
        let companion = self.companion.clone();
        Ok(Work::new(DeviceWork { status, done: receiver, deadline, what, companion }))
    }

    fn run(&self, operation: Operation, view: HostView<'_>, call: Call) -> Result<()> {
        self.companion.run(operation, view, call)
    }

    fn run_batch(&self, transfers: Vec<Transfer<'_>>, call: Call) -> Result<()> {
        self.companion.run_batch(transfers, call)
    }

    fn sub_group(&self, spec: SubGroup<'_>) -> Result<Arc<dyn Engine>> {
        let companion = Arc::new(self.companion.sub_engine(spec)?);
        let session = self.session.clone();
        Ok(Arc::new(Self::new(session, companion, spec.identity, spec.timeout)))
    }

    fn prepare_devices(&self) -> Result<()> {
        self.lane().map(drop)
    }

    fn abort(&self, reason: &str) {
        self.companion.abort(reason);
        // The thread looks at the failure; if it has ended, there is nothing to abort.
        let _ = self.session.send(Command::Wake);
    }

    fn bytes_sent(&self) -> u64 {
        self.companion.bytes_sent() + self.bytes_sent.load(Ordering::Relaxed)
    }

    fn machines(&self) -> Vec<u64> {
        self.companion.machines()
    }

    fn failure(&self) -> Option<CommError> {
        self.failure_now()
    }

    fn device_mark(&self) -> u64 {
        self.session.shared.started.load(Ordering::SeqCst)
    }

    fn first_given_up(&self) -> Option<u64> {
        self.session.shared.first_given_up()
    }
}

impl Drop for DeviceEngine {
    fn drop(&mut self) {
        let Some(lane) = self.lane.get() else { return };
        // The other ranks count on what was started, and should hear of it before a goodbye.
        let (reply, answer) = bounded(1);
        if self.session.send(Command::Retire(*lane, reply)).is_ok()
            && answer.recv_timeout(GOODBYE).is_err()
        {
            tracing::warn!(group = %self.identity, "operations on the device outlive their group");
        }
    }
}

/// A started operation on a device's memory.
struct DeviceWork {
    status: Arc<Status>,
    done: Receiver<Result<Buffer>>,
    deadline: Instant,
    what: String,
    companion: Arc<HostEngine>,
}

impl WorkHandle for DeviceWork {
    fn wait(self: Box<Self>) -> Result<Buffer> {
        self.status.is_urgent.store(true, Ordering::Relaxed);
        match self.done.recv_deadline(self.deadline + EXPLAIN) {
            Ok(result) => result,
            Err(_) => Err(self.companion.failure().unwrap_or_else(|| stuck(&self.what))),
        }
    }

    fn fence(&self) -> Result<Fence> {
        let (status, deadline) = (self.status.clone(), self.deadline + EXPLAIN);
        Ok(Fence { status, deadline, what: self.what.clone() })
    }

    fn is_done(&self) -> bool {
        !self.done.is_empty()
    }

    fn abort(self: Box<Self>) {
        self.companion.abort(&format!("{} was aborted", self.what));
    }
}

/// A barrier, which gives its buffer back untouched.
struct Passed {
    work: Work,
    device: crate::DeviceBuffer,
}

impl WorkHandle for Passed {
    fn wait(self: Box<Self>) -> Result<Buffer> {
        self.work.wait()?;
        Ok(Buffer::Device(self.device))
    }

    fn fence(&self) -> Result<Fence> {
        self.work.fence()
    }

    fn is_done(&self) -> bool {
        self.work.is_done()
    }

    fn abort(self: Box<Self>) {
        self.work.abort();
    }
}

/// What a stream waits for before it uses the result of an operation. See
/// [`Work::fence`].
pub struct Fence {
    status: Arc<Status>,
    deadline: Instant,
    what: String,
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fence").field("operation", &self.what).finish_non_exhaustive()
    }
}

impl Fence {
    /// Waits until the operation is on its stream, and returns the mark behind it there. The
    /// operation itself is not waited for: let a stream wait for the mark.
    ///
    /// # Errors
    /// The failure of the operation or of its session; within the operation's deadline, and a few
    /// seconds in which the missing ranks are named.
    pub fn launched(&self) -> Result<Arc<dyn DeviceEvent>> {
        self.status.wait(self.deadline).unwrap_or_else(|| Err(stuck(&self.what)))
    }
}
