//! Who is still there: the latch of the session's first failure, and how far each rank has come.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::CommError;
use crate::failure::{Failure, FailureKind};
use crate::header::Header;
use crate::sync::lock;

/// How long a broken link waits for its root cause to become known.
const CAUSE_GRACE: Duration = Duration::from_secs(1);
/// How often a wait looks at the latch.
pub(crate) const LATCH_PERIOD: Duration = Duration::from_millis(50);

/// The collective that a rank has entered last in a group.
pub(crate) type Entered = Arc<Mutex<Option<Header>>>;

/// What a rank answers when it is asked how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing.
    Silent,
    /// The last collective that it has entered, if any.
    Entered(Option<Header>),
}

impl Progress {
    /// Whether it says that the rank has not entered this collective yet.
    pub(crate) fn is_before(&self, collective: &Header) -> bool {
        let is_before = |last: &Header| last.sequence() < collective.sequence();
        matches!(self, Self::Entered(last) if last.as_ref().is_none_or(is_before))
    }
}

/// The view that one rank has of its session. Ranks are those of the world.
pub(crate) trait Membership: Send + Sync {
    /// This rank.
    fn rank(&self) -> usize;
    /// The failure that ended the session. One load while there is none.
    fn failure(&self) -> Option<CommError>;
    /// Latches `failure`, unless there is one, and tells every rank.
    fn fail(&self, failure: Failure);
    /// Whether `rank` has said goodbye.
    fn has_left(&self, rank: usize) -> bool;
    /// Makes the progress of this rank in a group visible to the others.
    fn register(&self, group: &str, entered: Entered);
    /// Asks each member how far it is in a group. An error says why nobody could be asked.
    fn progress(&self, group: &str, members: &[usize]) -> Result<Vec<Progress>, String>;

    /// Ends the session with an error that names this rank.
    fn abort(&self, reason: &str) {
        self.fail(Failure::new(self.rank(), FailureKind::Failed, reason));
    }

    /// Waits for the reason why a connection to `rank` broke: the latched failure, or a goodbye.
    fn cause_of_loss(&self, rank: usize, group: &str, call: &str) -> Option<CommError> {
        wait_for_cause(|| {
            let left = || {
                let detail = format!("rank {} is still in {call}", self.rank());
                CommError::Left { rank, group: group.into(), detail }
            };
            self.failure().or_else(|| self.has_left(rank).then(left))
        })
    }

    /// Returns the session's failure in place of an error that may be its consequence.
    fn cause_of(&self, error: CommError) -> CommError {
        match error {
            CommError::Store { .. } | CommError::SharedMemory { .. } => {
                wait_for_cause(|| self.failure()).unwrap_or(error)
            }
            other => other,
        }
    }
}

fn wait_for_cause(cause: impl Fn() -> Option<CommError>) -> Option<CommError> {
    let limit = Instant::now() + CAUSE_GRACE;
    loop {
        let found = cause();
        if found.is_some() || Instant::now() >= limit {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The failure of a session: the first one stands.
#[derive(Default)]
pub(crate) struct Latch {
    set: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Latch {
    /// Stores `failure` unless there is one, and tells whether it was the first.
    pub(crate) fn set(&self, failure: Failure) -> bool {
        let mut slot = lock(&self.failure);
        let first = slot.is_none();
        if first {
            *slot = Some(failure);
            self.set.store(true, Ordering::Release);
        }
        first
    }

    pub(crate) fn get(&self) -> Option<Failure> {
        if !self.set.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.failure).clone()
    }
}

/// What the rank-threads of one process share.
pub(crate) struct Board {
    latch: Latch,
    left: Vec<AtomicBool>,
    progress: Mutex<BTreeMap<(String, usize), Entered>>,
}

impl Board {
    pub(crate) fn new(world_size: usize) -> Arc<Self> {
        let left = (0..world_size).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self { latch: Latch::default(), left, progress: Mutex::default() })
    }

    pub(crate) fn fail(&self, failure: Failure) {
        self.latch.set(failure);
    }
}

/// Membership of a rank that is a thread; dropping it is the goodbye.
pub(crate) struct LocalMembership {
    rank: usize,
    board: Arc<Board>,
}

impl LocalMembership {
    pub(crate) fn new(rank: usize, board: Arc<Board>) -> Self {
        Self { rank, board }
    }
}

impl Drop for LocalMembership {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.board.fail(Failure::new(self.rank, FailureKind::Died, "its thread panicked"));
        }
        self.board.left[self.rank].store(true, Ordering::Release);
    }
}

impl Membership for LocalMembership {
    fn rank(&self) -> usize {
        self.rank
    }

    fn failure(&self) -> Option<CommError> {
        self.board.latch.get().map(CommError::from)
    }

    fn fail(&self, failure: Failure) {
        self.board.fail(failure);
    }

    fn has_left(&self, rank: usize) -> bool {
        self.board.left.get(rank).is_none_or(|left| left.load(Ordering::Acquire))
    }

    fn register(&self, group: &str, entered: Entered) {
        lock(&self.board.progress).insert((group.to_owned(), self.rank), entered);
    }

    fn progress(&self, group: &str, members: &[usize]) -> Result<Vec<Progress>, String> {
        let table = lock(&self.board.progress);
        let of = |&rank: &usize| {
            let entered = table.get(&(group.to_owned(), rank));
            entered.map_or(Progress::Silent, |entered| Progress::Entered(*lock(entered)))
        };
        Ok(members.iter().map(of).collect())
    }
}
