//! How groups come to the device thread and leave it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::conductor::Conductor;
use super::driver::{Driver, URGENT};
use super::lane::{Lane, Numbers};
use super::library::{Library, Progress, Seat};
use crate::host_engine::HostEngine;
use crate::membership::Entered;
use crate::{CommError, Engine, Result};

/// Time in which connections that are given back end.
const FAREWELL: Duration = Duration::from_secs(5);

/// A group to be made.
pub(super) struct Join {
    pub(super) lane: u64,
    pub(super) identity: String,
    pub(super) group: u32,
    pub(super) id: Vec<u8>,
    pub(super) companion: Arc<HostEngine>,
    /// Which conductor orders it, and what that carries its headers by.
    pub(super) conductor: u64,
    pub(super) order: Arc<HostEngine>,
    pub(super) entered: Entered,
    pub(super) bytes_sent: Arc<AtomicU64>,
    pub(super) deadline: Instant,
    pub(super) timeout: Duration,
    pub(super) reply: Sender<Result<()>>,
}

impl<L: Library> Driver<L> {
    /// Makes a group. Its ranks have met before, on its companion, and come here at the same time.
    pub(super) fn join(&mut self, join: Join) -> Result<()> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        self.quiesce(&join)?;
        let Join { identity, companion, deadline, group, .. } = join;
        let (rank, size) = (companion.rank(), companion.world_size());
        let failed = |detail: String| CommError::Library {
            group: identity.clone(),
            rank,
            library: L::NAME,
            operation: "creation of the group".into(),
            detail,
        };
        let seat = Seat { id: &join.id, identity: &identity, rank, size, companion: &companion };
        let comm = self.library.join(&seat).map_err(failed)?;
        if let Err(detail) = self.connect(&comm, deadline) {
            // Nothing was started on it.
            let _ = self.library.abort(vec![comm]);
            return Err(self.failure().unwrap_or_else(|| failed(detail)));
        }
        let conductor = self.conductors.entry(join.conductor);
        conductor.or_insert_with(|| Conductor::new(join.order)).lanes += 1;
        let lane = Lane {
            comm: Some(comm),
            numbers: Numbers::new(rank, size, group),
            identity,
            companion,
            conductor: join.conductor,
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            entered: join.entered,
            bytes_sent: join.bytes_sent,
        };
        self.lanes.insert(join.lane, lane);
        Ok(())
    }

    /// Waits until a communicator is made, and goes on with the operations of others.
    fn connect(&mut self, comm: &L::Comm, deadline: Instant) -> Result<(), String> {
        loop {
            match self.library.progress(comm) {
                Progress::Settled => return Ok(()),
                Progress::Failed(detail) => return Err(detail),
                Progress::Busy => {}
            }
            self.advance().map_err(|error| error.to_string())?;
            if let Some(failure) = self.failure() {
                return Err(failure.to_string());
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "not all ranks have come to it before the deadline, or they do not reach each \
                     other ({} tells)",
                    L::LOG
                ));
            }
            std::thread::sleep(URGENT);
        }
    }

    /// Brings a conductor that gets another lane to a point that is the same on all ranks.
    fn quiesce(&mut self, join: &Join) -> Result<()> {
        loop {
            let settled = self.conductors.get(&join.conductor).is_none_or(Conductor::is_settled);
            let queued = self
                .lanes
                .values()
                .any(|lane| lane.conductor == join.conductor && !lane.queue.is_empty());
            if settled && !queued {
                return Ok(());
            }
            self.advance()?;
            if Instant::now() >= join.deadline {
                let missing = "operations of other groups that were started before it do not end";
                return Err(CommError::Timeout {
                    group: join.identity.clone(),
                    rank: join.companion.rank(),
                    operation: "creation of the group".into(),
                    timeout: join.timeout,
                    missing: missing.into(),
                });
            }
            std::thread::sleep(URGENT);
        }
    }

    /// Forgets lanes whose operations have ended.
    pub(super) fn retire(&mut self) {
        let retiring = std::mem::take(&mut self.retiring);
        for (key, reply) in retiring {
            if self.lanes.get(&key).is_some_and(|lane| !lane.is_idle()) {
                self.retiring.push((key, reply));
                continue;
            }
            if let Some(lane) = self.lanes.remove(&key) {
                if let Some(conductor) = self.conductors.get_mut(&lane.conductor) {
                    conductor.lanes -= 1;
                    if conductor.lanes == 0 {
                        self.conductors.remove(&lane.conductor);
                    }
                }
                lane.comm.into_iter().for_each(|comm| self.leave(comm));
            }
            // The engine does not wait for long.
            let _ = reply.send(());
        }
        self.close_left();
    }

    /// Begins to give connections back.
    pub(super) fn leave(&mut self, comm: L::Comm) {
        match self.library.leave(&comm) {
            Ok(()) => self.leaving.push((comm, Instant::now() + FAREWELL)),
            Err(detail) => {
                tracing::debug!(detail, "a group could not be left");
                let _ = self.library.abort(vec![comm]);
            }
        }
    }

    /// Closes the communicators that have been left by all ranks, or for long enough.
    pub(super) fn close_left(&mut self) {
        for (comm, deadline) in std::mem::take(&mut self.leaving) {
            match self.library.progress(&comm) {
                Progress::Busy if Instant::now() < deadline => self.leaving.push((comm, deadline)),
                _ => self.library.close(comm),
            }
        }
    }
}
