//! A session as every thread sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::lane::Job;
use super::runtime::Runtime;
use super::sys::Comm;
use crate::failure::{Failure, FailureKind};
use crate::membership::Latch;
use crate::{CommError, Result};

/// A session as every thread sees it.
pub(super) struct Shared {
    pub(super) runtime: &'static Runtime,
    /// This rank in the world, and the size of it.
    pub(super) rank: usize,
    pub(super) size: usize,
    /// A number per rank that is equal for ranks on the same machine.
    pub(super) machines: Vec<u64>,
    pub(super) requests: Sender<NewGroup>,
    latch: Latch,
    /// Whether the latched failure is one that the other ranks must be told of.
    untold: AtomicBool,
}

impl Shared {
    pub(super) fn new(
        runtime: &'static Runtime,
        world: &Comm,
        machines: Vec<u64>,
        requests: Sender<NewGroup>,
    ) -> Self {
        let (rank, size) = (world.rank(), world.size());
        let (latch, untold) = (Latch::default(), AtomicBool::new(false));
        Self { runtime, rank, size, machines, requests, latch, untold }
    }

    pub(super) fn failure(&self) -> Option<CommError> {
        self.latch.get().map(CommError::from)
    }

    /// Returns the session's failure as an error.
    pub(super) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Latches `failure`, unless there is one, and has it told to every rank.
    pub(super) fn fail(&self, failure: Failure) {
        if self.latch.set(failure) {
            self.untold.store(true, Ordering::Release);
            self.runtime.wake();
        }
    }

    pub(super) fn abort(&self, reason: &str) {
        self.fail(Failure::new(self.rank, FailureKind::Failed, reason));
    }

    /// Latches a failure that another rank has told.
    pub(super) fn hear(&self, failure: Failure) {
        if self.latch.set(failure) {
            tracing::debug!(rank = self.rank, "heard of the session's failure");
        }
    }

    /// Returns the failure that the other ranks must be told of, once.
    pub(super) fn take_untold(&self) -> Option<Failure> {
        self.untold.swap(false, Ordering::AcqRel).then(|| self.latch.get()).flatten()
    }

    /// Tells every rank of an error of this one.
    pub(super) fn publish(&self, error: CommError) -> CommError {
        self.fail(Failure::of(self.rank, &error));
        error
    }
}

/// The wish for a group, from an engine.
pub(super) struct NewGroup {
    pub(super) identity: String,
    /// World ranks in the group's order; this rank is one of them.
    pub(super) members: Vec<usize>,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
    pub(super) jobs: Receiver<Job>,
    pub(super) bytes_sent: Arc<AtomicU64>,
    pub(super) reply: Sender<Result<()>>,
}
