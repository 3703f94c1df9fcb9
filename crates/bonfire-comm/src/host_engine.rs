//! The engine behind `single`, `local` and `host`: our own collectives, run one at a time.
//!
//! ORDER: each operation takes a ticket when it is called and runs when its turn comes. Started
//! operations wait for it in a worker thread, blocking calls in the caller's own thread on the
//! caller's own slice, which saves a thread hop and a copy.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};
use xxhash_rust::xxh3::xxh3_64;

use crate::collectives::{Collective, Halt, Turns};
use crate::failure::{Failure, FailureKind};
use crate::flow::Scratch;
use crate::header::Header;
use crate::late::Late;
use crate::links::{Connector, Links};
use crate::membership::{Entered, LATCH_PERIOD, Membership};
use crate::sync::lock;
use crate::topology::Topology;
use crate::tuning::{self, Tuning};
use crate::work::HostWork;
use crate::{
    Algorithm, Buffer, Call, Capabilities, CommError, DType, Engine, HostBuffer, HostView,
    MemoryKind, Operation, ReduceOp, Result, SubGroup, Transfer, Work,
};

/// Operations that may be started and not finished; the next start blocks.
const QUEUE: usize = 64;
/// Earlier calls that are remembered, to tell where two ranks parted.
const HISTORY: usize = 256;

/// The engine of one rank in one group.
pub(crate) struct HostEngine {
    lane: Arc<Lane>,
    entrance: Mutex<Entrance>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// Where operations take their tickets.
#[derive(Default)]
struct Entrance {
    next_ticket: u64,
    queue: Option<Sender<Job>>,
}

/// A started operation.
struct Job {
    ticket: u64,
    operation: Operation,
    buffer: HostBuffer,
    call: Call,
    done: Sender<Result<Buffer>>,
}

/// What the worker and the callers share.
struct Lane {
    /// First, so that the links close before a last goodbye, which may take a while.
    core: Mutex<Core>,
    identity: String,
    group: u32,
    rank: usize,
    /// World rank of each rank of this group.
    members: Vec<usize>,
    topology: Topology,
    algorithm: Algorithm,
    connector: Arc<dyn Connector>,
    membership: Arc<dyn Membership>,
    turn: Mutex<u64>,
    turned: Condvar,
    entered: Entered,
    bytes_sent: AtomicU64,
}

/// State of whoever has the turn.
struct Core {
    links: Links,
    turns: Turns,
    scratch: Scratch,
    tuning: Tuning,
    collectives: u64,
    last_collective: Option<Header>,
    history: VecDeque<Header>,
    sent_to: Vec<u64>,
    received_from: Vec<u64>,
    /// That of the operation under way, for messages.
    timeout: Duration,
}

impl Core {
    fn remember(&mut self, header: Header) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(header);
    }

    /// The call of this rank that the peer's header should have matched: an earlier one, if this
    /// rank was through with it before the peer's header came.
    fn counterpart<'a>(&'a self, remote: &Header, current: &'a Header) -> &'a Header {
        let same_place = |own: &&Header| own.is_at(remote);
        self.history.iter().rev().find(same_place).unwrap_or(current)
    }
}

/// Passes the turn on, also when the operation panics.
struct Turn<'a>(&'a Lane);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.membership.fail(Failure::new(
                self.0.membership.rank(),
                FailureKind::Died,
                "it panicked inside a collective",
            ));
        }
        *lock(&self.0.turn) += 1;
        self.0.turned.notify_all();
    }
}

/// What a new group is like.
pub(crate) struct Plan<'a> {
    pub(crate) identity: &'a str,
    /// World ranks in the group's order.
    pub(crate) members: Vec<usize>,
    pub(crate) timeout: Duration,
    pub(crate) algorithm: Algorithm,
    /// That of a group of the same ranks; `None` measures where there is a choice.
    pub(crate) tuning: Option<Tuning>,
}

impl HostEngine {
    /// Connects the ranks of a group.
    ///
    /// # Collective
    /// Called by all members.
    pub(crate) fn connect(
        plan: Plan<'_>,
        connector: Arc<dyn Connector>,
        membership: Arc<dyn Membership>,
    ) -> Result<Self> {
        let Plan { identity, members, timeout, algorithm, tuning } = plan;
        let world_rank = membership.rank();
        let rank = members.iter().position(|&member| member == world_rank).ok_or_else(|| {
            CommError::Internal { detail: format!("rank {world_rank} makes a group of others") }
        })?;
        let entered = Entered::default();
        membership.register(identity, entered.clone());
        let deadline = crate::group::deadline_after(timeout);
        let links = connector
            .connect(identity, &members, rank, deadline)
            .map_err(|error| membership.cause_of(error))?;
        let machines = connector.machines();
        let machines: Vec<u64> = members.iter().map(|&member| machines[member]).collect();
        let topology = Topology::new(&machines, connector.shares_memory());
        let size = members.len();
        let core = Core {
            links,
            turns: Turns::default(),
            scratch: Scratch::default(),
            tuning: tuning.unwrap_or_else(|| Tuning::before_measuring(&topology)),
            collectives: 0,
            last_collective: None,
            history: VecDeque::new(),
            sent_to: vec![0; size],
            received_from: vec![0; size],
            timeout,
        };
        let lane = Lane {
            identity: identity.to_owned(),
            group: xxh3_64(identity.as_bytes()) as u32,
            rank,
            members,
            topology,
            algorithm,
            connector,
            membership,
            turn: Mutex::new(0),
            turned: Condvar::new(),
            core: Mutex::new(core),
            entered,
            bytes_sent: AtomicU64::new(0),
        };
        let measures = tuning.is_none() && algorithm == Algorithm::Auto && size > 1;
        // Between machines with several ranks each there is one way only.
        if measures && (lane.topology.is_one_machine() || !lane.topology.has_neighbours()) {
            lane.measure(deadline)?;
        }
        Ok(Self { lane: Arc::new(lane), entrance: Mutex::default(), worker: Mutex::new(None) })
    }

    /// As [`Engine::sub_group`], by its own type.
    pub(crate) fn sub_engine(&self, spec: SubGroup<'_>) -> Result<Self> {
        self.lane.check("creation of a group")?;
        let lane = &self.lane;
        let same = spec.members.iter().copied().eq(0..lane.members.len());
        let plan = Plan {
            identity: spec.identity,
            members: spec.members.iter().map(|&rank| lane.members[rank]).collect(),
            timeout: spec.timeout,
            algorithm: spec.algorithm.unwrap_or(lane.algorithm),
            // Only a group that chooses for itself has measured.
            tuning: (same && lane.algorithm == Algorithm::Auto).then(|| lock(&lane.core).tuning),
        };
        let engine = Self::connect(plan, lane.connector.clone(), lane.membership.clone())
            .map_err(|error| lane.publish(error))?;
        Ok(engine)
    }

    /// What this rank knows of its session.
    pub(crate) fn membership(&self) -> &Arc<dyn Membership> {
        &self.lane.membership
    }

    /// World rank of each rank of the group.
    pub(crate) fn members(&self) -> &[usize] {
        &self.lane.members
    }

    fn take_ticket(&self) -> u64 {
        let mut entrance = lock(&self.entrance);
        entrance.next_ticket += 1;
        entrance.next_ticket - 1
    }

    /// Returns the queue of the worker, which is started at the first use.
    fn queue(&self, entrance: &mut Entrance) -> Result<Sender<Job>> {
        if let Some(queue) = &entrance.queue {
            return Ok(queue.clone());
        }
        let (queue, jobs) = bounded(QUEUE);
        let lane = self.lane.clone();
        let worker = std::thread::Builder::new()
            .name(format!("comm {}", self.lane.identity))
            .spawn(move || lane.work(&jobs))
            .map_err(|error| CommError::system("start a communication thread", &error))?;
        *lock(&self.worker) = Some(worker);
        entrance.queue = Some(queue.clone());
        Ok(queue)
    }
}

impl Drop for HostEngine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let rank = self.lane.membership.rank();
            self.lane.membership.fail(Failure::new(rank, FailureKind::Died, "its thread panicked"));
        }
        // The other ranks count on what was started: finish it, at the latest at its deadline.
        lock(&self.entrance).queue = None;
        if let Some(worker) = lock(&self.worker).take() {
            let _ = worker.join();
        }
    }
}

impl Engine for HostEngine {
    fn name(&self) -> &'static str {
        self.lane.connector.engine()
    }

    fn rank(&self) -> usize {
        self.lane.rank
    }

    fn world_size(&self) -> usize {
        self.lane.members.len()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::host()
    }

    fn start(&self, operation: Operation, buffer: Buffer, call: Call) -> Result<Work> {
        self.lane.check(operation)?;
        let Buffer::Host(buffer) = buffer else {
            return Err(CommError::WrongMemory { expected: MemoryKind::Host });
        };
        let (done, receiver) = bounded(1);
        let mut entrance = lock(&self.entrance);
        let queue = self.queue(&mut entrance)?;
        let ticket = entrance.next_ticket;
        let (deadline, timeout) = (call.deadline, call.timeout);
        let job = Job { ticket, operation, buffer, call, done };
        if let Err(error) = queue.send_deadline(job, deadline) {
            let error = match error {
                SendTimeoutError::Timeout(_) => {
                    let call = format!("{operation}, behind {QUEUE} others");
                    self.lane.timeout(call, timeout, "they did not end".into())
                }
                SendTimeoutError::Disconnected(_) => {
                    CommError::Internal { detail: "the communication thread ended".into() }
                }
            };
            return Err(self.lane.publish(error));
        }
        entrance.next_ticket += 1;
        Ok(Work::new(HostWork {
            engine: self.name(),
            operation: operation.to_string(),
            done: receiver,
            deadline,
            membership: self.lane.membership.clone(),
        }))
    }

    fn run(&self, operation: Operation, view: HostView<'_>, call: Call) -> Result<()> {
        self.lane.check(operation)?;
        let ticket = self.take_ticket();
        self.lane.run_one_in_turn(ticket, operation, view, &call)
    }

    fn run_batch(&self, transfers: Vec<Transfer<'_>>, call: Call) -> Result<()> {
        self.lane.check("batch_send_recv")?;
        let ticket = self.take_ticket();
        self.lane.run_in_turn(ticket, "batch_send_recv", &call, |lane, core| {
            lane.execute_batch(core, transfers, &call)
        })
    }

    fn sub_group(&self, spec: SubGroup<'_>) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(self.sub_engine(spec)?))
    }

    fn abort(&self, reason: &str) {
        self.lane.membership.abort(reason);
    }

    fn bytes_sent(&self) -> u64 {
        self.lane.bytes_sent.load(Ordering::Relaxed)
    }

    fn machines(&self) -> Vec<u64> {
        let machines = self.lane.connector.machines();
        self.lane.members.iter().map(|&rank| machines[rank]).collect()
    }

    fn failure(&self) -> Option<CommError> {
        self.lane.membership.failure()
    }
}

impl Lane {
    /// Returns the session's failure as an error of the call `what`.
    fn check(&self, what: impl fmt::Display) -> Result<()> {
        let failed = |error: CommError| Err(error.heard_in(self.membership.rank(), what));
        self.membership.failure().map_or(Ok(()), failed)
    }

    /// Runs started operations until the engine is dropped.
    fn work(&self, jobs: &Receiver<Job>) {
        for Job { ticket, operation, mut buffer, call, done } in jobs {
            let dtype = buffer.dtype();
            let view = HostView::Exclusive { bytes: buffer.as_bytes_mut(), dtype };
            let result = self.run_one_in_turn(ticket, operation, view, &call);
            call.record.finished(result.as_ref().err());
            // Nobody listens when the work was dropped.
            let _ = done.send(result.map(|()| Buffer::Host(buffer)));
        }
    }

    fn run_one_in_turn(
        &self,
        ticket: u64,
        operation: Operation,
        view: HostView<'_>,
        call: &Call,
    ) -> Result<()> {
        self.run_in_turn(ticket, operation, call, |lane, core| {
            lane.execute(core, operation, view, call)
        })
    }

    fn run_in_turn(
        &self,
        ticket: u64,
        what: impl fmt::Display,
        call: &Call,
        run: impl FnOnce(&Self, &mut Core) -> Result<()>,
    ) -> Result<()> {
        self.wait_for_turn(ticket, &what, call)?;
        let _turn = Turn(self);
        self.check(what)?;
        if self.members.len() == 1 {
            return Ok(());
        }
        run(self, &mut lock(&self.core))
    }

    /// Waits until all earlier operations are done. A ticket that is given up here blocks those
    /// behind it, but then the session has failed and they see that.
    fn wait_for_turn(&self, ticket: u64, what: impl fmt::Display, call: &Call) -> Result<()> {
        let mut turn = lock(&self.turn);
        while *turn != ticket {
            self.check(&what)?;
            let left = call.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(turn);
                let missing = "an operation before it did not end".to_owned();
                return Err(self.publish(self.timeout(what, call.timeout, missing)));
            }
            let wait = left.min(LATCH_PERIOD);
            turn = self.turned.wait_timeout(turn, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn execute(
        &self,
        core: &mut Core,
        operation: Operation,
        view: HostView<'_>,
        call: &Call,
    ) -> Result<()> {
        core.timeout = call.timeout;
        let header = self.header(core, operation, view.dtype(), view.len());
        call.record.started(header.sequence());
        if operation.is_collective() {
            *lock(&self.entered) = Some(header);
            core.turns.enter(&core.links, header);
        }
        let mut collective = self.collective(core, call.deadline);
        let result = collective.run(self.algorithm, operation, header, view);
        self.bytes_sent.fetch_add(collective.sent, Ordering::Relaxed);
        if let Err(halt) = result {
            return Err(self.publish(self.explain(core, halt, &header)));
        }
        core.remember(header);
        Ok(())
    }

    fn execute_batch(
        &self,
        core: &mut Core,
        transfers: Vec<Transfer<'_>>,
        call: &Call,
    ) -> Result<()> {
        let mut first = None;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for Transfer { operation, view } in transfers {
            let header = self.header(core, operation, view.dtype(), view.len());
            first.get_or_insert(header);
            match (operation, view) {
                (Operation::Send { to }, HostView::Shared { bytes, .. }) => {
                    sends.push((header, to, bytes));
                }
                (Operation::Send { to }, HostView::Exclusive { bytes, .. }) => {
                    sends.push((header, to, &*bytes));
                }
                (Operation::Recv { from }, HostView::Exclusive { bytes, .. }) => {
                    receives.push((header, from, bytes));
                }
                (operation, _) => {
                    let detail = format!("{operation} in a batch of messages");
                    return Err(self.publish(CommError::Internal { detail }));
                }
            }
        }
        let Some(header) = first else { return Ok(()) };
        call.record.started(header.sequence());
        let mut collective = self.collective(core, call.deadline);
        let result = collective.exchange(sends, receives);
        self.bytes_sent.fetch_add(collective.sent, Ordering::Relaxed);
        result.map_err(|halt| self.publish(self.explain(core, halt, &header)))
    }

    /// Numbers an operation.
    fn header(&self, core: &mut Core, operation: Operation, dtype: DType, len: usize) -> Header {
        let counter = match operation {
            Operation::Send { to } => &mut core.sent_to[to],
            Operation::Recv { from } => &mut core.received_from[from],
            _ => &mut core.collectives,
        };
        let sequence = *counter;
        *counter += 1;
        // A gather and a scatter are described by the part of one rank, also at the root.
        let count = match operation {
            Operation::Gather { root } | Operation::Scatter { root } if root == self.rank => {
                len / self.members.len()
            }
            _ => len,
        };
        let header = Header::new(operation, self.rank, dtype, count, sequence, self.group);
        if !operation.is_collective() {
            return header;
        }
        let header = header.after(core.last_collective.as_ref());
        core.last_collective = Some(header);
        header
    }

    fn collective<'a>(&'a self, core: &'a mut Core, deadline: Instant) -> Collective<'a> {
        Collective {
            rank: self.rank,
            size: self.members.len(),
            topology: &self.topology,
            links: &mut core.links,
            turns: &mut core.turns,
            scratch: &mut core.scratch,
            membership: self.membership.as_ref(),
            deadline,
            patience: core.tuning.patience,
            direct_bytes: core.tuning.direct_bytes,
            sent: 0,
        }
    }

    /// Measures the ways to carry an all-reduce out, before the group's first operation.
    ///
    /// # Collective
    /// Called by all ranks.
    fn measure(&self, deadline: Instant) -> Result<()> {
        let mut core = lock(&self.core);
        let header = |count: usize, sequence: u64| {
            let operation = Operation::AllReduce(ReduceOp::Max);
            // A number of its own, so that no operation of the group can be taken for this.
            Header::new(operation, self.rank, DType::F64, count, sequence, !self.group)
        };
        let tuning = core.tuning;
        let mut collective = self.collective(&mut core, deadline);
        let measured = tuning::measure(&mut collective, tuning, header);
        core.tuning = measured.map_err(|halt| self.explain(&core, halt, &header(0, 0)))?;
        tracing::debug!(group = %self.identity, tuning = ?core.tuning, "measured");
        Ok(())
    }

    /// Says in words why an operation stopped.
    fn explain(&self, core: &Core, halt: Halt, header: &Header) -> CommError {
        let group = self.identity.clone();
        match halt {
            Halt::Failed(error) => error.heard_in(self.membership.rank(), header),
            Halt::Mismatch { peer, local, remote } => {
                let own = core.counterpart(&remote, &local);
                let parting = own.parting(&remote);
                let calls = parting.unwrap_or_else(|| (own.to_string(), remote.to_string()));
                self.mismatch(peer, calls)
            }
            Halt::Malformed { peer } => {
                CommError::Malformed { group, peer, detail: "no header of a collective".into() }
            }
            Halt::Lost { peer, detail } => {
                let call = header.to_string();
                let cause = self.membership.cause_of_loss(self.members[peer], &group, &call);
                let cause = cause.map(|error| error.heard_in(self.membership.rank(), &call));
                cause.unwrap_or(CommError::LinkLost { group, peer, operation: call, detail })
            }
            Halt::Deadline { mut peers } => {
                peers.sort_unstable();
                peers.dedup();
                self.explain_timeout(core, header, &peers)
            }
        }
    }

    fn explain_timeout(&self, core: &Core, header: &Header, peers: &[usize]) -> CommError {
        let counterpart = |remote: &Header| *core.counterpart(remote, header);
        self.late(core.timeout).explain(header, peers, counterpart)
    }

    fn late(&self, timeout: Duration) -> Late<'_> {
        Late {
            membership: self.membership.as_ref(),
            identity: &self.identity,
            key: &self.identity,
            rank: self.rank,
            members: &self.members,
            timeout,
        }
    }

    fn mismatch(&self, peer: usize, (local, remote): (String, String)) -> CommError {
        CommError::Mismatch { group: self.identity.clone(), rank: self.rank, peer, local, remote }
    }

    fn timeout(&self, call: impl fmt::Display, timeout: Duration, missing: String) -> CommError {
        self.late(timeout).error(call, missing)
    }

    /// Tells every rank of the error, unless they know the session's failure already.
    fn publish(&self, error: CommError) -> CommError {
        if self.membership.failure().is_none() {
            self.membership.fail(Failure::of(self.membership.rank(), &error));
        }
        error
    }
}

/// The barrier's view of memory: there is none.
pub(crate) fn nothing() -> HostView<'static> {
    HostView::Exclusive { bytes: &mut [], dtype: DType::U8 }
}
