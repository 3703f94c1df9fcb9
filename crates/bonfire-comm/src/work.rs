//! A started operation.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::membership::Membership;
use crate::{Buffer, CommError, Fence, Result};

/// What an engine hands out for a started operation.
pub trait WorkHandle: Send {
    /// Blocks until the operation has finished; see [`Work::wait`].
    ///
    /// # Errors
    /// Those of the operation.
    fn wait(self: Box<Self>) -> Result<Buffer>;

    /// Returns what a device's stream can wait for; see [`Work::fence`].
    ///
    /// # Errors
    /// For operations on host memory.
    fn fence(&self) -> Result<Fence>;

    /// Tells whether [`WorkHandle::wait`] would return at once.
    fn is_done(&self) -> bool;

    /// Gives the operation up, which ends the session; see [`Work::abort`].
    fn abort(self: Box<Self>);
}

/// A started operation, which owns its buffer until [`Work::wait`] gives it back.
///
/// Dropping it loses the buffer and the error, but the operation still runs: the other ranks
/// count on it.
#[must_use = "a dropped Work loses its buffer and its error; call wait()"]
pub struct Work {
    handle: Box<dyn WorkHandle>,
}

impl Work {
    /// Wraps the handle of an engine.
    pub fn new(handle: impl WorkHandle + 'static) -> Self {
        Self { handle: Box::new(handle) }
    }

    /// Blocks until the operation has finished and returns its buffer. For device memory this
    /// also waits for the device.
    ///
    /// # Errors
    /// Those of the operation: mismatch, deadline, a failed rank. The buffer is lost then.
    pub fn wait(self) -> Result<Buffer> {
        self.handle.wait()
    }

    /// Returns what a device's stream has to wait for before it uses the buffer's contents, so that
    /// no host thread waits for a device. The work may be dropped then.
    ///
    /// # Errors
    /// [`CommError::Unsupported`] for operations on host memory.
    pub fn fence(&self) -> Result<Fence> {
        self.handle.fence()
    }

    /// Tells whether [`Work::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    /// Gives the operation up. A collective cannot be taken back on one rank only, so this ends
    /// the session of all ranks, as [`ProcessGroup::abort`](crate::ProcessGroup::abort) does.
    pub fn abort(self) {
        self.handle.abort();
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

/// Time that the worker may take after a deadline to find out which ranks are missing.
const EXPLAIN: Duration = Duration::from_secs(10);

/// An operation that a worker thread runs on host memory.
pub(crate) struct HostWork {
    pub(crate) engine: &'static str,
    pub(crate) operation: String,
    pub(crate) done: Receiver<Result<Buffer>>,
    pub(crate) deadline: Instant,
    pub(crate) membership: Arc<dyn Membership>,
}

impl WorkHandle for HostWork {
    fn wait(self: Box<Self>) -> Result<Buffer> {
        match self.done.recv_deadline(self.deadline + EXPLAIN) {
            Ok(result) => result,
            // The worker reports deadlines itself: to be here is a bug, but still no hang.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(self.membership.failure().unwrap_or_else(|| CommError::Internal {
                    detail: format!("the worker did not finish {}", self.operation),
                }))
            }
        }
    }

    fn fence(&self) -> Result<Fence> {
        Err(CommError::Unsupported { engine: self.engine, what: "device streams".into() })
    }

    fn is_done(&self) -> bool {
        !self.done.is_empty()
    }

    fn abort(self: Box<Self>) {
        self.membership.abort(&format!("{} was aborted", self.operation));
    }
}
