//! A set of ranks that communicate.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{Call, HostView, Transfer};
use crate::flight::{GroupKey, Record, Recorder};
use crate::host_engine::{HostEngine, Plan, nothing};
use crate::links::SingleConnector;
use crate::membership::{Board, LocalMembership};
use crate::{
    Algorithm, Buffer, Capabilities, CommError, DType, Element, Engine, Operation, ReduceOp,
    Result, SubGroup, Work,
};

/// Deadline of a collective when none was chosen, as in PyTorch's gloo and NCCL groups.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// Most bytes that the control plane gathers in one call.
const MAX_CONTROL_BYTES: usize = 1 << 30;

/// Returns the instant `timeout` from now; a timeout beyond all bounds is a year.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(YEAR)
}

/// One message of [`ProcessGroup::batch_send_recv`].
#[derive(Debug)]
pub enum PeerOp<'a, T> {
    /// Sends `data` to rank `to`.
    Send {
        /// What is sent.
        data: &'a [T],
        /// Destination.
        to: usize,
    },
    /// Fills `data` from rank `from`.
    Recv {
        /// What is filled.
        data: &'a mut [T],
        /// Source.
        from: usize,
    },
}

impl<'a, T: Element> PeerOp<'a, T> {
    fn into_transfer(self) -> Transfer<'a> {
        match self {
            Self::Send { data, to } => {
                Transfer { operation: Operation::Send { to }, view: shared(data) }
            }
            Self::Recv { data, from } => {
                Transfer { operation: Operation::Recv { from }, view: exclusive(data) }
            }
        }
    }
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
        let membership = Arc::new(LocalMembership::new(0, Board::new(1)));
        let plan = Plan {
            identity: "world",
            members: vec![0],
            timeout,
            algorithm: Algorithm::Auto,
            tuning: None,
        };
        let engine = HostEngine::connect(plan, Arc::new(SingleConnector), membership);
        match engine {
            Ok(engine) => Self::from_engine(Arc::new(engine), "world", timeout),
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

    /// Returns the engine, for engines that build on another.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        self.inner.engine.clone()
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

    /// Returns the payload bytes that this rank has sent in this group.
    pub fn bytes_sent(&self) -> u64 {
        self.inner.engine.bytes_sent()
    }

    /// Returns the failure that has ended the session, if any.
    pub fn failure(&self) -> Option<CommError> {
        self.inner.engine.failure()
    }

    /// Returns the flight recorder that this group shares with all groups of its session.
    pub fn flight_recorder(&self) -> &Arc<Recorder> {
        &self.inner.recorder
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

    /// Reduces `data` over all ranks; every rank ends with the same bits.
    ///
    /// # Collective
    /// Called by all ranks with equal length and operation; blocks. Deterministic.
    ///
    /// # Errors
    /// The failures of any collective.
    #[track_caller]
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(Operation::AllReduce(op), exclusive(data))
    }

    /// Reduces `data` over all ranks to rank `root`. What the slices of the other ranks hold
    /// afterwards is unspecified.
    ///
    /// # Collective
    /// Called by all ranks with equal length, root and operation. Ranks other than the root may
    /// return before it. Deterministic.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`] for a root outside; otherwise the failures of any collective.
    #[track_caller]
    pub fn reduce<T: Element>(&self, data: &mut [T], root: usize, op: ReduceOp) -> Result<()> {
        self.run(Operation::Reduce { root, op }, exclusive(data))
    }

    /// Copies `data` of rank `root` to every rank.
    ///
    /// # Collective
    /// Called by all ranks with equal length and root. The root may return before the others.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`] for a root outside; otherwise the failures of any collective.
    #[track_caller]
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.run(Operation::Broadcast { root }, exclusive(data))
    }

    /// Puts the `input` of every rank into `output`, in the order of the ranks.
    ///
    /// # Shapes
    /// `output.len() == input.len() * world_size`
    ///
    /// # Collective
    /// Called by all ranks with equal length; blocks.
    ///
    /// # Errors
    /// [`CommError::WrongLength`] for other shapes; otherwise the failures of any collective.
    #[track_caller]
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.expect_scaled("all_gather", "output", input.len(), output.len())?;
        let own = self.rank() * input.len();
        output[own..own + input.len()].copy_from_slice(input);
        self.run(Operation::AllGather, exclusive(output))
    }

    /// Reduces `input` over all ranks and gives rank r the r-th part of the result.
    ///
    /// # Shapes
    /// `input.len() == output.len() * world_size`
    ///
    /// # Collective
    /// Called by all ranks with equal length and operation; blocks. Deterministic.
    ///
    /// # Errors
    /// [`CommError::WrongLength`] for other shapes; otherwise the failures of any collective.
    #[track_caller]
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.expect_scaled("reduce_scatter", "input", output.len(), input.len())?;
        let mut partial = input.to_vec();
        self.run(Operation::ReduceScatter(op), exclusive(&mut partial))?;
        let own = self.rank() * output.len();
        output.copy_from_slice(&partial[own..own + output.len()]);
        Ok(())
    }

    /// Sends the r-th part of `input` to rank r, and puts what rank r has sent here into the r-th
    /// part of `output`.
    ///
    /// # Shapes
    /// `input.len() == output.len()`, a multiple of the world size
    ///
    /// # Collective
    /// Called by all ranks with equal length; blocks.
    ///
    /// # Errors
    /// [`CommError::WrongLength`] for other shapes; otherwise the failures of any collective.
    #[track_caller]
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.expect_len("all_to_all", "output", input.len(), output.len())?;
        output.copy_from_slice(input);
        self.run(Operation::AllToAll, exclusive(output))
    }

    /// Puts the `input` of every rank into `output` of rank `root`, in the order of the ranks.
    ///
    /// # Shapes
    /// On the root `output.len() == input.len() * world_size`; elsewhere `output` is not used and
    /// may be empty.
    ///
    /// # Collective
    /// Called by all ranks with equal length and root. Ranks other than the root may return
    /// before it.
    ///
    /// # Errors
    /// [`CommError::WrongLength`], [`CommError::NoSuchRank`]; otherwise the failures of any
    /// collective.
    #[track_caller]
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        if self.rank() != root {
            return self.run(Operation::Gather { root }, shared(input));
        }
        self.expect_scaled("gather", "output", input.len(), output.len())?;
        let own = self.rank() * input.len();
        output[own..own + input.len()].copy_from_slice(input);
        self.run(Operation::Gather { root }, exclusive(output))
    }

    /// Puts the r-th part of `input` of rank `root` into `output` of rank r.
    ///
    /// # Shapes
    /// On the root `input.len() == output.len() * world_size`; elsewhere `input` is not used and
    /// may be empty.
    ///
    /// # Collective
    /// Called by all ranks with equal length and root. The root may return before the others.
    ///
    /// # Errors
    /// [`CommError::WrongLength`], [`CommError::NoSuchRank`]; otherwise the failures of any
    /// collective.
    #[track_caller]
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        if self.rank() != root {
            return self.run(Operation::Scatter { root }, exclusive(output));
        }
        self.expect_scaled("scatter", "input", output.len(), input.len())?;
        let own = self.rank() * output.len();
        output.copy_from_slice(&input[own..own + output.len()]);
        self.run(Operation::Scatter { root }, shared(input))
    }

    /// Waits until every rank has called it.
    ///
    /// # Collective
    /// Called by all ranks; blocks.
    ///
    /// # Errors
    /// The failures of any collective.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.run(Operation::Barrier, nothing())
    }

    /// Waits until every rank has called it, at most for `timeout`, which may be shorter than the
    /// group's.
    ///
    /// # Collective
    /// Called by all ranks; blocks.
    ///
    /// # Errors
    /// [`CommError::Timeout`] names every rank that has not come; otherwise the failures of any
    /// collective.
    ///
    /// # Reference
    /// `torch.distributed.monitored_barrier` with `wait_all_ranks`.
    #[track_caller]
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<()> {
        self.run_within(Operation::Barrier, nothing(), timeout)
    }

    /// Sends `data` to rank `to`, which must receive it. May return before it has arrived.
    ///
    /// Two ranks that send to each other before either receives wait for each other when the
    /// data does not fit into the buffers between them; let one receive first.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`]; [`CommError::Mismatch`] on the receiver if it expects another
    /// type or length; otherwise the failures of any collective.
    #[track_caller]
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<()> {
        self.run(Operation::Send { to }, shared(data))
    }

    /// Receives `data` from rank `from`.
    ///
    /// # Errors
    /// As [`Self::send`].
    #[track_caller]
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<()> {
        self.run(Operation::Recv { from }, exclusive(data))
    }

    /// Runs sends and receives at the same time, so that no order of them waits for itself.
    /// Messages between the same two ranks keep their order.
    ///
    /// # Errors
    /// As [`Self::send`].
    ///
    /// # Reference
    /// `torch.distributed.batch_isend_irecv`, waited for.
    #[track_caller]
    pub fn batch_send_recv<T: Element>(&self, messages: Vec<PeerOp<'_, T>>) -> Result<()> {
        let transfers: Vec<_> = messages.into_iter().map(PeerOp::into_transfer).collect();
        let (mut count, mut operation) = (0, None);
        for Transfer { operation: message, view } in &transfers {
            self.check(*message, view.dtype(), view.len())?;
            count += view.len();
            operation.get_or_insert(*message);
        }
        // Nothing to do; and no rank counts batches.
        let Some(operation) = operation else { return Ok(()) };
        let call = self.call(operation, T::DTYPE, count, self.timeout());
        let record = call.record.clone();
        let result = self.inner.engine.run_batch(transfers, call);
        record.finished(result.as_ref().err());
        result
    }

    /// Runs `operation` in place, where the calls above that have an input and an output copy.
    /// What `data` holds before and after is described at [`Operation`].
    ///
    /// # Collective
    /// As the operation; blocks.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`] or [`CommError::WrongLength`] for arguments; otherwise the
    /// failures of any collective.
    #[track_caller]
    pub fn run_in_place<T: Element>(&self, operation: Operation, data: &mut [T]) -> Result<()> {
        self.run(operation, exclusive(data))
    }

    /// Starts [`Self::all_reduce`] in place.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[track_caller]
    pub fn start_all_reduce(&self, buffer: impl Into<Buffer>, op: ReduceOp) -> Result<Work> {
        self.start(Operation::AllReduce(op), buffer.into())
    }

    /// Starts [`Self::broadcast`] in place.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[track_caller]
    pub fn start_broadcast(&self, buffer: impl Into<Buffer>, root: usize) -> Result<Work> {
        self.start(Operation::Broadcast { root }, buffer.into())
    }

    /// Starts an all-gather in place: the buffer has a part for each rank, and rank r has filled
    /// part r.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[track_caller]
    pub fn start_all_gather(&self, buffer: impl Into<Buffer>) -> Result<Work> {
        self.start(Operation::AllGather, buffer.into())
    }

    /// Starts a reduce-scatter in place: the buffer has a part for each rank, and rank r finds
    /// its result in part r; the other parts hold unspecified values afterwards.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[track_caller]
    pub fn start_reduce_scatter(&self, buffer: impl Into<Buffer>, op: ReduceOp) -> Result<Work> {
        self.start(Operation::ReduceScatter(op), buffer.into())
    }

    /// Starts [`Self::barrier`]; the work gives back an empty buffer.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[track_caller]
    pub fn start_barrier(&self) -> Result<Work> {
        self.start(Operation::Barrier, Buffer::from(Vec::<u8>::new()))
    }

    /// Starts [`Self::send`].
    ///
    /// # Errors
    /// As [`Self::start`].
    #[track_caller]
    pub fn start_send(&self, buffer: impl Into<Buffer>, to: usize) -> Result<Work> {
        self.start(Operation::Send { to }, buffer.into())
    }

    /// Starts [`Self::recv`].
    ///
    /// # Errors
    /// As [`Self::start`].
    #[track_caller]
    pub fn start_recv(&self, buffer: impl Into<Buffer>, from: usize) -> Result<Work> {
        self.start(Operation::Recv { from }, buffer.into())
    }

    /// Starts an operation behind all others of this group and returns at once, unless 64 are
    /// pending. The work owns the buffer until it is waited for.
    ///
    /// # Collective
    /// As the operation. The deadline runs from this call.
    ///
    /// # Errors
    /// [`CommError::Unsupported`], [`CommError::NoSuchRank`] or [`CommError::WrongLength`] for
    /// arguments, the session's failure if it has one; the rest comes from [`Work::wait`].
    #[track_caller]
    pub fn start(&self, operation: Operation, buffer: Buffer) -> Result<Work> {
        self.check(operation, buffer.dtype(), buffer.len())?;
        let capabilities = self.capabilities();
        if !capabilities.memory.contains(&buffer.memory()) {
            return Err(self.unsupported(format!("{} memory", buffer.memory())));
        }
        let call = self.call(operation, buffer.dtype(), buffer.len(), self.timeout());
        let record = call.record.clone();
        let result = self.inner.engine.start(operation, buffer, call);
        if let Err(error) = &result {
            record.finished(Some(error));
        }
        result
    }

    /// Gathers byte strings of different lengths from all ranks, in the order of the ranks.
    ///
    /// # Collective
    /// Called by all ranks; blocks. Two collectives: do not call it from two threads at once.
    ///
    /// # Errors
    /// [`CommError::WrongLength`] for more than 1 GiB over all ranks; otherwise the failures of
    /// any collective.
    #[track_caller]
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut lens = vec![0i64; self.world_size()];
        self.all_gather(&[bytes.len() as i64], &mut lens)?;
        // Padded to the longest: the control plane is small, and one ring serves all shapes.
        let longest = lens.iter().copied().max().unwrap_or(0);
        let longest = self.control_len("all_gather_bytes", longest)?;
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let mut gathered = vec![0u8; longest * self.world_size()];
        self.all_gather(&padded, &mut gathered)?;
        let part = |(rank, &len): (usize, &i64)| {
            let start = rank * longest;
            gathered[start..start + usize::try_from(len).unwrap_or(0).min(longest)].to_vec()
        };
        Ok(lens.iter().enumerate().map(part).collect())
    }

    /// Gives every rank the bytes of rank `root`; the other ranks' argument is ignored.
    ///
    /// # Collective
    /// Called by all ranks with the same root. Two collectives: do not call it from two threads
    /// at once.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`]; otherwise the failures of any collective.
    #[track_caller]
    pub fn broadcast_bytes(&self, mut bytes: Vec<u8>, root: usize) -> Result<Vec<u8>> {
        let mut len = [bytes.len() as i64];
        self.broadcast(&mut len, root)?;
        bytes.resize(usize::try_from(len[0]).unwrap_or(0), 0);
        self.broadcast(&mut bytes, root)?;
        Ok(bytes)
    }

    /// Bounds a length that other ranks told. All ranks come to the same verdict.
    fn control_len(&self, operation: &'static str, len: i64) -> Result<usize> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len.saturating_mul(self.world_size()) <= MAX_CONTROL_BYTES {
            return Ok(len);
        }
        let limit = MAX_CONTROL_BYTES / self.world_size();
        let expected = format!("at most {limit}");
        Err(CommError::WrongLength { operation, what: "message", expected, got: len })
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

    /// Checks the arguments against the group and the engine, before any rank is involved.
    fn check(&self, operation: Operation, dtype: DType, len: usize) -> Result<()> {
        let capabilities = self.capabilities();
        if !capabilities.operations.contains(&operation.kind()) {
            return Err(self.unsupported(operation.to_string()));
        }
        if !capabilities.dtypes.contains(&dtype) {
            return Err(self.unsupported(format!("{dtype} elements")));
        }
        match operation {
            Operation::Broadcast { root } | Operation::Reduce { root, .. } => {
                self.expect_rank("root", root, true)
            }
            Operation::Gather { root } => {
                self.expect_rank("root", root, true)?;
                self.expect_parts_of_root("gather", root, len)
            }
            Operation::Scatter { root } => {
                self.expect_rank("root", root, true)?;
                self.expect_parts_of_root("scatter", root, len)
            }
            Operation::AllToAll => self.expect_parts("all_to_all", len),
            Operation::Send { to } => self.expect_rank("destination", to, false),
            Operation::Recv { from } => self.expect_rank("source", from, false),
            Operation::AllGather => self.expect_parts("all_gather", len),
            Operation::ReduceScatter(_) => self.expect_parts("reduce_scatter", len),
            Operation::AllReduce(_) | Operation::Barrier => Ok(()),
        }
    }

    fn unsupported(&self, what: String) -> CommError {
        CommError::Unsupported { engine: self.engine_name(), what }
    }

    fn expect_rank(&self, role: &'static str, rank: usize, own_allowed: bool) -> Result<()> {
        if rank < self.world_size() && (own_allowed || rank != self.rank()) {
            return Ok(());
        }
        let role = if rank == self.rank() { "this rank itself: rank" } else { role };
        let (group, world_size) = (self.inner.identity.clone(), self.world_size());
        Err(CommError::NoSuchRank { role, rank, group, world_size })
    }

    fn expect_parts(&self, operation: &'static str, len: usize) -> Result<()> {
        if len.is_multiple_of(self.world_size()) {
            return Ok(());
        }
        let expected = format!("a multiple of {}", self.world_size());
        Err(CommError::WrongLength { operation, what: "buffer", expected, got: len })
    }

    fn expect_parts_of_root(&self, operation: &'static str, root: usize, len: usize) -> Result<()> {
        if self.rank() == root { self.expect_parts(operation, len) } else { Ok(()) }
    }

    fn expect_scaled(
        &self,
        operation: &'static str,
        what: &'static str,
        part: usize,
        whole: usize,
    ) -> Result<()> {
        self.expect_len(operation, what, part * self.world_size(), whole)
    }

    fn expect_len(
        &self,
        operation: &'static str,
        what: &'static str,
        expected: usize,
        got: usize,
    ) -> Result<()> {
        if got == expected {
            return Ok(());
        }
        Err(CommError::WrongLength { operation, what, expected: expected.to_string(), got })
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
