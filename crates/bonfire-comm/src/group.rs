//! A set of ranks that communicate.

mod checks;
mod collectives;
mod control;
mod started;

use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{Call, HostView};
use crate::flight::{GroupKey, Record, Recorder};
use crate::host_engine::{HostEngine, Plan};
use crate::links::SingleConnector;
use crate::membership::{Board, LocalMembership};
use crate::{
    Algorithm, Capabilities, CommError, DType, Element, Engine, Operation, Result, SubGroup,
};

pub use collectives::PeerOp;

/// Deadline of a collective when none was chosen, as in PyTorch's gloo and NCCL groups.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Returns the instant `timeout` from now; a timeout beyond all bounds is a year.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(YEAR)
}

/// A set of ranks and the engine that moves bytes between them. Clones are the same group.
///
/// Every rank of a group calls the same collectives in the same order. Work whose order may
/// differ between ranks goes to a [`duplicate`](Self::duplicate). The blocking calls and
/// `start_*` share one order: a blocking call waits for everything started before it.
///
/// Every call can return the failure of the session: the death, the departure or the error of
/// another rank, always within the group's timeout. Slices that a failed call was to fill hold
/// unspecified values.
#[derive(Clone)]
pub struct ProcessGroup {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Arc<dyn Engine>,
    name: String,
    identity: String,
    timeout: Duration,
    children: AtomicU64,
    /// One for the world and all groups made from it.
    recorder: Arc<Recorder>,
    /// This group in the recorder.
    key: GroupKey,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("name", &self.name())
            .field("engine", &self.engine_name())
            .field("rank", &self.rank())
            .field("world_size", &self.world_size())
            .finish_non_exhaustive()
    }
}

impl ProcessGroup {
    /// Makes a group of one rank, without sockets or threads.
    pub fn single() -> Self {
        Self::single_with_timeout(DEFAULT_TIMEOUT)
    }

    pub(crate) fn single_with_timeout(timeout: Duration) -> Self {
        Self::from_engine(Arc::new(Self::single_engine(timeout)), "world", timeout)
    }

    /// The engine of one rank that talks to nobody.
    pub(crate) fn single_engine(timeout: Duration) -> HostEngine {
        let membership = Arc::new(LocalMembership::new(0, Board::new(1)));
        let plan = Plan {
            identity: "world",
            members: vec![0],
            timeout,
            algorithm: Algorithm::Auto,
            tuning: None,
        };
        match HostEngine::connect(plan, Arc::new(SingleConnector), membership) {
            Ok(engine) => engine,
            Err(error) => unreachable!("a group of one rank connects to nobody: {error}"),
        }
    }

    /// Wraps an engine, for engines of other crates and for tests.
    pub fn from_engine(engine: Arc<dyn Engine>, name: &str, timeout: Duration) -> Self {
        let recorder = Arc::new(Recorder::new(engine.rank(), engine.world_size()));
        Self::with_identity(engine, name, name.to_owned(), timeout, recorder)
    }

    fn with_identity(
        engine: Arc<dyn Engine>,
        name: &str,
        identity: String,
        timeout: Duration,
        recorder: Arc<Recorder>,
    ) -> Self {
        let name = name.to_owned();
        let children = AtomicU64::new(0);
        let key = recorder.register(&identity, engine.rank(), engine.world_size());
        let inner = Inner { engine, name, identity, timeout, children, recorder, key };
        Self { inner: Arc::new(inner) }
    }

    /// Returns this rank in the group.
    pub fn rank(&self) -> usize {
        self.inner.engine.rank()
    }

    /// Returns the number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.inner.engine.world_size()
    }

    /// Returns the name given at creation; the first group is called `world`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the name of the engine.
    pub fn engine_name(&self) -> &'static str {
        self.inner.engine.name()
    }

    /// Returns the time after which a collective fails.
    pub fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// Returns what the engine can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.engine.capabilities()
    }

    /// Returns on how many machines the ranks of this group run.
    pub fn num_machines(&self) -> usize {
        self.inner.engine.machines().into_iter().collect::<BTreeSet<_>>().len()
    }

    /// Returns a number of the machine of each rank, the same for ranks of one machine.
    pub fn machines(&self) -> Vec<u64> {
        self.inner.engine.machines()
    }

    /// Returns the payload bytes that this rank has sent in this group.
    pub fn bytes_sent(&self) -> u64 {
        self.inner.engine.bytes_sent()
    }

    /// Returns the failure that has ended the session, if any.
    pub fn failure(&self) -> Option<CommError> {
        self.inner.engine.failure()
    }

    /// Marks a place in the order of the operations on devices that this rank starts, over all groups
    /// of its session.
    pub fn device_mark(&self) -> u64 {
        self.inner.engine.device_mark()
    }

    /// Whether the session's failure has cost an operation before a mark its result, so that what a
    /// device has computed from it is worthless. Certain once a read of the device has returned that
    /// was behind them.
    pub fn is_lost_before(&self, mark: u64) -> bool {
        self.inner.engine.first_given_up().is_some_and(|first| first < mark)
    }

    /// Returns the flight recorder that this group shares with all groups of its session.
    pub fn flight_recorder(&self) -> &Arc<Recorder> {
        &self.inner.recorder
    }

    /// Connects the ranks' devices now, and not when the first operation on a device's memory is
    /// started: where that may be another group's on another rank.
    ///
    /// # Collective
    /// Called by all ranks; blocks until all have, on engines for devices.
    ///
    /// # Errors
    /// The failures of any collective, and of the library between the devices.
    #[track_caller]
    pub fn prepare_devices(&self) -> Result<()> {
        self.inner.engine.prepare_devices()
    }

    /// Ends the session: pending and later collectives of every rank, in every group, return an
    /// error that names this rank and `reason`.
    pub fn abort(&self, reason: &str) {
        self.inner.engine.abort(reason);
    }

    /// Makes a group of the same ranks with connections and an order of its own.
    ///
    /// # Collective
    /// Called by all ranks with the same name; blocks until all have.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] when the names differ; otherwise the failures of any collective.
    #[track_caller]
    pub fn duplicate(&self, name: &str) -> Result<Self> {
        self.expect_equal("duplicate", name)?;
        let members: Vec<usize> = (0..self.world_size()).collect();
        self.child(name, &members, self.next_child(), None)
    }

    /// Checks that all ranks give the same argument.
    #[track_caller]
    fn expect_equal(&self, call: &str, argument: &str) -> Result<()> {
        let arguments = self.all_gather_bytes(argument.as_bytes())?;
        let differs = |other: &Vec<u8>| other != argument.as_bytes();
        let Some(peer) = arguments.iter().position(differs) else { return Ok(()) };
        let error = CommError::Mismatch {
            group: self.inner.identity.clone(),
            rank: self.rank(),
            peer,
            local: format!("{call}({argument:?})"),
            remote: format!("{call}({:?})", String::from_utf8_lossy(&arguments[peer])),
        };
        self.abort(&error.to_string());
        Err(error)
    }

    /// Makes groups of the ranks that give the same color, ordered by key, then by rank; a rank
    /// that gives no color gets no group.
    ///
    /// # Collective
    /// Called by all ranks; blocks until all have.
    ///
    /// # Errors
    /// The failures of any collective.
    ///
    /// # Reference
    /// `MPI_Comm_split`; no color is `MPI_UNDEFINED`.
    #[track_caller]
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        let flag = i64::from(color.is_some());
        let mine = [flag, color.unwrap_or(0).cast_signed(), key];
        let mut table = vec![0i64; 3 * self.world_size()];
        self.all_gather(&mine, &mut table)?;
        let child = self.next_child();
        let Some(color) = color else { return Ok(None) };
        let mut members: Vec<(i64, usize)> = table
            .chunks_exact(3)
            .enumerate()
            .filter(|(_, row)| row[..2] == mine[..2])
            .map(|(rank, row)| (row[2], rank))
            .collect();
        members.sort_unstable();
        let members: Vec<usize> = members.into_iter().map(|(_, rank)| rank).collect();
        self.child(&format!("{}.{color}", self.name()), &members, child, None).map(Some)
    }

    fn next_child(&self) -> u64 {
        self.inner.children.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a duplicate of this group that carries collectives out in another way.
    ///
    /// # Collective
    /// Called by all ranks with the same algorithm; blocks until all have.
    ///
    /// # Errors
    /// As [`Self::duplicate`].
    #[track_caller]
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Result<Self> {
        self.expect_equal("with_algorithm", algorithm.name())?;
        let members: Vec<usize> = (0..self.world_size()).collect();
        self.child(algorithm.name(), &members, self.next_child(), Some(algorithm))
    }

    fn child(
        &self,
        name: &str,
        members: &[usize],
        index: u64,
        algorithm: Option<Algorithm>,
    ) -> Result<Self> {
        let identity = format!("{}/{name}#{index}", self.inner.identity);
        let timeout = self.timeout();
        let spec = SubGroup { identity: &identity, members, timeout, algorithm };
        let engine = self.inner.engine.sub_group(spec)?;
        let recorder = self.inner.recorder.clone();
        Ok(Self::with_identity(engine, name, identity, timeout, recorder))
    }

    #[track_caller]
    fn run(&self, operation: Operation, view: HostView<'_>) -> Result<()> {
        self.run_within(operation, view, self.timeout())
    }

    #[track_caller]
    fn run_within(
        &self,
        operation: Operation,
        view: HostView<'_>,
        timeout: Duration,
    ) -> Result<()> {
        self.check(operation, view.dtype(), view.len())?;
        let call = self.call(operation, view.dtype(), view.len(), timeout);
        let record = call.record.clone();
        let result = self.inner.engine.run(operation, view, call);
        record.finished(result.as_ref().err());
        result
    }

    /// Enters an operation in the flight recorder.
    #[track_caller]
    fn call(&self, operation: Operation, dtype: DType, count: usize, timeout: Duration) -> Call {
        let site = Location::caller();
        let Inner { recorder, key, .. } = self.inner.as_ref();
        let record = Record::begin(recorder, *key, operation, dtype, count, site);
        Call { deadline: deadline_after(timeout), timeout, record }
    }
}

fn exclusive<T: Element>(data: &mut [T]) -> HostView<'_> {
    HostView::Exclusive { bytes: bytemuck::cast_slice_mut(data), dtype: T::DTYPE }
}

fn shared<T: Element>(data: &[T]) -> HostView<'_> {
    HostView::Shared { bytes: bytemuck::cast_slice(data), dtype: T::DTYPE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;

    #[test]
    fn a_single_rank_keeps_its_data() {
        let group = ProcessGroup::single();
        let mut data = [1.5f32, 2.5];
        group.all_reduce(&mut data, ReduceOp::Mean).unwrap();
        group.barrier().unwrap();
        assert_eq!(group.all_gather_bytes(b"hi").unwrap(), [b"hi".to_vec()]);
        let work = group.duplicate("x").unwrap().start_all_reduce(data.to_vec(), ReduceOp::Sum);
        assert_eq!(work.unwrap().wait().unwrap().into_vec::<f32>().unwrap(), data);
        let split = group.split(Some(3), 0).unwrap().unwrap();
        assert_eq!((split.world_size(), split.num_machines()), (1, 1));
        assert_eq!((data, group.bytes_sent()), ([1.5, 2.5], 0));
    }

    #[test]
    fn wrong_arguments_are_refused_before_anything_is_sent() {
        let group = ProcessGroup::single();
        let error = group.broadcast(&mut [0f32], 1).unwrap_err();
        assert_eq!(error.to_string(), "root 1 is not in group \"world\" of 1 ranks");
        let error = group.all_gather(&[0f32], &mut [0f32; 2]).unwrap_err();
        assert_eq!(error.to_string(), "all_gather: output has 2 elements, 1 are needed");
        assert!(group.send(&[0u8], 0).is_err());
    }
}
