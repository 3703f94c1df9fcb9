//! The order of operations over several groups, the same on all ranks.
//!
//! Kernels of two groups on one device wait for each other when two ranks launch them in different
//! order, so one rank, the leader, decides: it launches what is ready, and
//! tells the others each operation by its header. A rank that has a single group has no choice to
//! make, and launches at once; it compares the header when it comes. With several groups it waits
//! to be told which is next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::flight::{GroupKey, Record, Recorder};
use crate::header::{HEADER_BYTES, Header};
use crate::host_engine::HostEngine;
use crate::{Buffer, Call, CommError, DType, Engine, HostBuffer, Operation, Result, Work};

/// Time beyond an operation's own deadline in which its header must have come: whoever waits for
/// the operation explains better what is missing.
const SLACK: Duration = Duration::from_secs(60);
const BROADCAST: Operation = Operation::Broadcast { root: 0 };

pub(super) struct Conductor {
    /// Carries headers and nothing else.
    order: Arc<HostEngine>,
    recorder: Arc<Recorder>,
    key: GroupKey,
    /// Lanes that it conducts.
    pub(super) lanes: usize,
    awaited: Option<Work>,
    /// What the leader has launched and this rank has not.
    turn: Option<Header>,
    /// What this rank has launched without having been told, oldest first.
    unconfirmed: usize,
}

impl Conductor {
    pub(super) fn new(order: Arc<HostEngine>) -> Self {
        // Not the session's: what the engine does for itself is not what a user asks about.
        let recorder = Arc::new(Recorder::apart(order.rank(), order.world_size()));
        let key = recorder.register("order", order.rank(), order.world_size());
        Self { order, recorder, key, lanes: 0, awaited: None, turn: None, unconfirmed: 0 }
    }

    pub(super) fn leads(&self) -> bool {
        self.order.rank() == 0
    }

    fn is_alone(&self) -> bool {
        self.order.world_size() == 1
    }

    /// Whether this rank has to be told what is next.
    pub(super) fn follows(&self) -> bool {
        !self.leads() && self.lanes > 1
    }

    /// The operation that is next, if this rank was told.
    pub(super) fn turn(&self) -> Option<&Header> {
        self.turn.as_ref()
    }

    /// Whether headers of operations that were launched are still to come.
    pub(super) fn is_settled(&self) -> bool {
        self.unconfirmed == 0 && self.turn.is_none() && self.awaited.is_none()
    }

    /// Notes a launch, and tells the others of it.
    pub(super) fn launched(&mut self, header: &Header, deadline: Instant) -> Result<()> {
        if self.is_alone() {
            return Ok(());
        }
        if self.leads() {
            // The operation runs to its end also when the work is dropped.
            return self.exchange(header.encode().to_vec(), deadline).map(drop);
        }
        match self.turn.take() {
            Some(_) => Ok(()),
            None => {
                self.unconfirmed += 1;
                self.listen(deadline)
            }
        }
    }

    /// Asks to be told of the next operation.
    pub(super) fn listen(&mut self, deadline: Instant) -> Result<()> {
        if self.leads() || self.awaited.is_some() || self.turn.is_some() {
            return Ok(());
        }
        self.awaited = Some(self.exchange(vec![0; HEADER_BYTES], deadline)?);
        Ok(())
    }

    /// Returns the header of the oldest operation that was launched without one, if it has come.
    pub(super) fn hear(&mut self, deadline: Instant) -> Result<Option<Header>> {
        let Some(awaited) = self.awaited.take_if(|awaited| awaited.is_done()) else {
            return Ok(None);
        };
        let bytes = awaited.wait()?.into_vec::<u8>()?;
        let header = bytes.first_chunk().and_then(Header::decode);
        let header = header.ok_or_else(|| CommError::Malformed {
            group: "order".into(),
            peer: 0,
            detail: "no header of a collective".into(),
        })?;
        if self.unconfirmed == 0 {
            self.turn = Some(header);
            return Ok(None);
        }
        self.unconfirmed -= 1;
        if self.unconfirmed > 0 {
            self.listen(deadline)?;
        }
        Ok(Some(header))
    }

    #[track_caller]
    fn exchange(&self, bytes: Vec<u8>, deadline: Instant) -> Result<Work> {
        let site = std::panic::Location::caller();
        let len = bytes.len();
        let record = Record::begin(&self.recorder, self.key, BROADCAST, DType::U8, len, site);
        let deadline = deadline + SLACK;
        let timeout = deadline.saturating_duration_since(Instant::now());
        self.order.start(
            BROADCAST,
            Buffer::Host(HostBuffer::U8(bytes)),
            Call { deadline, timeout, record },
        )
    }
}
