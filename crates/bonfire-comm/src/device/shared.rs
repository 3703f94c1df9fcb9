//! What engines and the device thread share.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use crate::CommError;
use crate::sync::lock;

/// The state of a session.
#[derive(Default)]
pub(super) struct Shared {
    failure: Mutex<Option<CommError>>,
    /// Operations that were started.
    pub(super) started: AtomicU64,
    /// The oldest that the failure has cost its result.
    first_given_up: Mutex<Option<u64>>,
    pub(super) lanes: AtomicU64,
}

impl Shared {
    pub(super) fn failure(&self) -> Option<CommError> {
        lock(&self.failure).clone()
    }

    pub(super) fn first_given_up(&self) -> Option<u64> {
        *lock(&self.first_given_up)
    }

    /// Notes that an operation is lost.
    pub(super) fn give_up(&self, index: u64) {
        let mut first = lock(&self.first_given_up);
        *first = Some(first.map_or(index, |first| first.min(index)));
    }

    /// Ends the session for the engines.
    pub(super) fn fail(&self, error: &CommError) {
        *lock(&self.failure) = Some(error.clone());
    }
}
