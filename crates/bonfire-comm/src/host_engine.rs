//! The engine behind `single`, `local` and `host`: our own collectives, run one at a time.
//!
//! ORDER: each operation takes a ticket when it is called and runs when its turn comes. Started
//! operations wait for it in a worker thread, blocking calls in the caller's own thread on the
//! caller's own slice, which saves a thread hop and a copy.

mod lane;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{SendTimeoutError, Sender, bounded};
use xxhash_rust::xxh3::xxh3_64;

use crate::collectives::Turns;
use crate::failure::{Failure, FailureKind};
use crate::flow::Scratch;
use crate::links::Connector;
use crate::membership::{Entered, Membership};
use crate::sync::lock;
use crate::topology::Topology;
use crate::tuning::Tuning;
use crate::work::HostWork;
use crate::{
    Algorithm, Buffer, Call, Capabilities, CommError, DType, Engine, HostView, MemoryKind,
    Operation, Result, SubGroup, Transfer, Work,
};

use self::lane::{Core, Job, Lane};

/// Operations that may be started and not finished; the next start blocks.
const QUEUE: usize = 64;

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

/// The barrier's view of memory: there is none.
pub(crate) fn nothing() -> HostView<'static> {
    HostView::Exclusive { bytes: &mut [], dtype: DType::U8 }
}
