//! The operations of one group, one at a time.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

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
use crate::{
    Algorithm, Buffer, Call, CommError, DType, HostBuffer, HostView, Operation, ReduceOp, Result,
    Transfer,
};

/// Earlier calls that are remembered, to tell where two ranks parted.
const HISTORY: usize = 256;

/// A started operation.
pub(super) struct Job {
    pub(super) ticket: u64,
    pub(super) operation: Operation,
    pub(super) buffer: HostBuffer,
    pub(super) call: Call,
    pub(super) done: Sender<Result<Buffer>>,
}

/// What the worker and the callers share.
pub(super) struct Lane {
    /// First, so that the links close before a last goodbye, which may take a while.
    pub(super) core: Mutex<Core>,
    pub(super) identity: String,
    pub(super) group: u32,
    pub(super) rank: usize,
    /// World rank of each rank of this group.
    pub(super) members: Vec<usize>,
    pub(super) topology: Topology,
    pub(super) algorithm: Algorithm,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) membership: Arc<dyn Membership>,
    pub(super) turn: Mutex<u64>,
    pub(super) turned: Condvar,
    pub(super) entered: Entered,
    pub(super) bytes_sent: AtomicU64,
}

/// State of whoever has the turn.
pub(super) struct Core {
    pub(super) links: Links,
    pub(super) turns: Turns,
    pub(super) scratch: Scratch,
    pub(super) tuning: Tuning,
    pub(super) collectives: u64,
    pub(super) last_collective: Option<Header>,
    pub(super) history: VecDeque<Header>,
    pub(super) sent_to: Vec<u64>,
    pub(super) received_from: Vec<u64>,
    /// That of the operation under way, for messages.
    pub(super) timeout: Duration,
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

impl Lane {
    /// Returns the session's failure as an error of the call `what`.
    pub(super) fn check(&self, what: impl fmt::Display) -> Result<()> {
        let failed = |error: CommError| Err(error.heard_in(self.membership.rank(), what));
        self.membership.failure().map_or(Ok(()), failed)
    }

    /// Runs started operations until the engine is dropped.
    pub(super) fn work(&self, jobs: &Receiver<Job>) {
        for Job { ticket, operation, mut buffer, call, done } in jobs {
            let dtype = buffer.dtype();
            let view = HostView::Exclusive { bytes: buffer.as_bytes_mut(), dtype };
            let result = self.run_one_in_turn(ticket, operation, view, &call);
            call.record.finished(result.as_ref().err());
            // Nobody listens when the work was dropped.
            let _ = done.send(result.map(|()| Buffer::Host(buffer)));
        }
    }

    pub(super) fn run_one_in_turn(
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

    pub(super) fn run_in_turn(
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

    pub(super) fn execute(
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

    pub(super) fn execute_batch(
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
    pub(super) fn measure(&self, deadline: Instant) -> Result<()> {
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

    pub(super) fn timeout(
        &self,
        call: impl fmt::Display,
        timeout: Duration,
        missing: String,
    ) -> CommError {
        self.late(timeout).error(call, missing)
    }

    /// Tells every rank of the error, unless they know the session's failure already.
    pub(super) fn publish(&self, error: CommError) -> CommError {
        if self.membership.failure().is_none() {
            self.membership.fail(Failure::of(self.membership.rank(), &error));
        }
        error
    }
}
