//! The engine of one group, as its [`ProcessGroup`](crate::ProcessGroup) sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};

use super::lane::{Job, Message};
use super::loan::{Target, lend};
use super::runtime::ended_early;
use super::shared::{NewGroup, Shared};
use crate::failure::{Failure, FailureKind};
use crate::group::deadline_after;
use crate::work::WorkHandle;
use crate::{
    Algorithm, Buffer, Call, Capabilities, CommError, Engine, Fence, HostView, MemoryKind,
    Operation, Result, SubGroup, Transfer, Work,
};

pub(super) const NAME: &str = "mpi";
/// Operations that may be started and not begun; the next start blocks.
const QUEUE: usize = 64;
/// Time that the communication thread may take after a deadline to find out who is missing.
const EXPLAIN: Duration = Duration::from_secs(10);

/// The engine of one rank in one group.
pub(super) struct MpiEngine {
    shared: Arc<Shared>,
    identity: String,
    rank: usize,
    /// World rank of each rank of this group.
    members: Vec<usize>,
    /// The group's timeout, for messages.
    timeout: Duration,
    jobs: Sender<Job>,
    bytes_sent: Arc<AtomicU64>,
}

/// The ends of an engine that go to the communication thread.
pub(super) struct LaneEnds {
    pub(super) jobs: Receiver<Job>,
    pub(super) bytes_sent: Arc<AtomicU64>,
}

impl MpiEngine {
    pub(super) fn new(
        shared: Arc<Shared>,
        identity: &str,
        members: Vec<usize>,
        timeout: Duration,
    ) -> Result<(Self, LaneEnds)> {
        let rank = members.iter().position(|&member| member == shared.rank).ok_or_else(|| {
            let detail = format!("rank {} makes a group of others", shared.rank);
            CommError::Internal { detail }
        })?;
        let (jobs, incoming) = bounded(QUEUE);
        let bytes_sent = Arc::new(AtomicU64::new(0));
        let ends = LaneEnds { jobs: incoming, bytes_sent: bytes_sent.clone() };
        let identity = identity.to_owned();
        Ok((Self { shared, identity, rank, members, timeout, jobs, bytes_sent }, ends))
    }

    /// Runs a job on the memory of the caller, who waits here.
    fn run_lent(&self, transfers: Vec<Transfer<'_>>, call: Call) -> Result<()> {
        let (operations, views): (Vec<_>, Vec<_>) =
            transfers.into_iter().map(|Transfer { operation, view }| (operation, view)).unzip();
        lend(views, |targets| {
            let message = |(operation, target)| Message { operation, target };
            let messages = operations.into_iter().zip(targets).map(message).collect();
            self.submit(messages, call)?.finish().map(drop)
        })
    }

    /// Puts a job behind all others of this group.
    fn submit(&self, messages: Vec<Message>, call: Call) -> Result<Ticket> {
        self.shared.check()?;
        let operation = describe(&messages);
        let (done, receiver) = bounded(1);
        let begun = Arc::new(AtomicBool::new(false));
        let deadline = call.deadline;
        let job = Job { messages, call, begun: begun.clone(), done };
        let ticket = Ticket {
            shared: self.shared.clone(),
            group: self.identity.clone(),
            rank: self.rank,
            timeout: self.timeout,
            operation,
            begun,
            deadline,
            done: receiver,
        };
        match self.jobs.send_deadline(job, deadline) {
            Ok(()) => {
                self.shared.runtime.wake();
                Ok(ticket)
            }
            Err(SendTimeoutError::Timeout(_)) => {
                Err(ticket.timed_out(&format!("behind {QUEUE} others")))
            }
            Err(SendTimeoutError::Disconnected(_)) => Err(ended_early()),
        }
    }
}

fn describe(messages: &[Message]) -> String {
    match messages {
        [message] => message.operation.to_string(),
        messages => format!("a batch of {} messages", messages.len()),
    }
}

impl Drop for MpiEngine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let rank = self.shared.rank;
            self.shared.fail(Failure::new(rank, FailureKind::Died, "its thread panicked"));
        }
        // The lane finishes what was started, then tells the others that this rank has left; it
        // sees the end of the queue when it looks next.
        self.shared.runtime.wake();
    }
}

impl Engine for MpiEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::host()
    }

    fn start(&self, operation: Operation, buffer: Buffer, call: Call) -> Result<Work> {
        let Buffer::Host(buffer) = buffer else {
            return Err(CommError::WrongMemory { expected: MemoryKind::Host });
        };
        let message = Message { operation, target: Target::Owned(buffer) };
        self.submit(vec![message], call).map(Work::new)
    }

    fn run(&self, operation: Operation, view: HostView<'_>, call: Call) -> Result<()> {
        self.run_lent(vec![Transfer { operation, view }], call)
    }

    fn run_batch(&self, transfers: Vec<Transfer<'_>>, call: Call) -> Result<()> {
        self.run_lent(transfers, call)
    }

    fn sub_group(&self, spec: SubGroup<'_>) -> Result<Arc<dyn Engine>> {
        self.shared.check()?;
        let SubGroup { identity, members, timeout, algorithm } = spec;
        if let Some(algorithm) = algorithm.filter(|algorithm| *algorithm != Algorithm::Auto) {
            let what = format!("algorithm \"{algorithm}\", which is the library's to choose");
            return Err(CommError::Unsupported { engine: NAME, what });
        }
        let members: Vec<usize> = members.iter().map(|&rank| self.members[rank]).collect();
        let (engine, LaneEnds { jobs, bytes_sent }) =
            Self::new(self.shared.clone(), identity, members.clone(), timeout)?;
        let (reply, answer) = bounded(1);
        let deadline = deadline_after(timeout);
        let identity = identity.to_owned();
        let request = NewGroup { identity, members, timeout, deadline, jobs, bytes_sent, reply };
        self.shared.requests.send(request).map_err(|_| ended_early())?;
        self.shared.runtime.wake();
        match answer.recv_deadline(deadline + EXPLAIN) {
            Ok(result) => result.map(|()| Arc::new(engine) as Arc<dyn Engine>),
            // The thread is inside MPI, with a member that was there and then stopped.
            Err(RecvTimeoutError::Timeout) => Err(self.shared.publish(CommError::Timeout {
                group: engine.identity.clone(),
                rank: engine.rank,
                operation: "creation of the group".into(),
                timeout,
                missing: "a member stopped during it".into(),
            })),
            Err(RecvTimeoutError::Disconnected) => Err(ended_early()),
        }
    }

    fn abort(&self, reason: &str) {
        self.shared.abort(reason);
    }

    fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Ordering::Relaxed)
    }

    fn machines(&self) -> Vec<u64> {
        self.members.iter().map(|&rank| self.shared.machines[rank]).collect()
    }

    fn failure(&self) -> Option<CommError> {
        self.shared.failure()
    }
}

/// A job that was submitted.
struct Ticket {
    shared: Arc<Shared>,
    group: String,
    rank: usize,
    timeout: Duration,
    operation: String,
    begun: Arc<AtomicBool>,
    deadline: Instant,
    done: Receiver<Result<Vec<Message>>>,
}

impl Ticket {
    /// Waits for the end of the job.
    fn finish(self) -> Result<Vec<Message>> {
        match self.done.recv_deadline(self.deadline) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if !self.begun.load(Ordering::Acquire) => {
                let failure = self.shared.failure();
                return Err(failure
                    .unwrap_or_else(|| self.timed_out("behind an operation that does not end")));
            }
            Err(_) => {}
        }
        // The communication thread has seen the deadline and finds out who is missing.
        match self.done.recv_deadline(self.deadline + EXPLAIN) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(ended_early()),
            Err(RecvTimeoutError::Timeout) => {
                let failure = self.shared.failure();
                Err(failure.unwrap_or_else(|| self.timed_out("MPI does not come back from it")))
            }
        }
    }

    fn timed_out(&self, missing: &str) -> CommError {
        self.shared.publish(CommError::Timeout {
            group: self.group.clone(),
            rank: self.rank,
            operation: self.operation.clone(),
            timeout: self.timeout,
            missing: missing.to_owned(),
        })
    }
}

impl WorkHandle for Ticket {
    fn wait(self: Box<Self>) -> Result<Buffer> {
        match self.finish()?.pop() {
            Some(Message { target: Target::Owned(buffer), .. }) => Ok(Buffer::Host(buffer)),
            _ => Err(CommError::Internal { detail: "a started operation lost its buffer".into() }),
        }
    }

    fn fence(&self) -> Result<Fence> {
        Err(CommError::Unsupported { engine: NAME, what: "device streams".into() })
    }

    fn is_done(&self) -> bool {
        !self.done.is_empty()
    }

    fn abort(self: Box<Self>) {
        self.shared.abort(&format!("{} was aborted", self.operation));
    }
}
