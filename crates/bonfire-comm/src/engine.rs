//! What moves the bytes of a group.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::flight::Record;
use crate::{Algorithm, Buffer, CommError, DType, HostBuffer, ReduceOp, Result, Work};

/// A collective or point-to-point operation. All work in place and keep the buffer's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Every rank ends with the reduction of all buffers.
    AllReduce(ReduceOp),
    /// The root ends with the reduction of all buffers. The contents of the other buffers are
    /// unspecified.
    Reduce {
        /// Rank that gets the result.
        root: usize,
        /// How elements are combined.
        op: ReduceOp,
    },
    /// Every rank ends with the buffer of `root`.
    Broadcast {
        /// Rank whose contents are sent.
        root: usize,
    },
    /// The buffer has a segment for each rank; rank r has filled segment r, and every rank ends
    /// with all segments.
    AllGather,
    /// The buffer has a segment for each rank; rank r ends with the reduction of all ranks'
    /// segments r in its segment r. The contents of the other segments are unspecified.
    ReduceScatter(ReduceOp),
    /// The buffer has a segment for each rank; rank r sends its segment s to rank s, and ends with
    /// what rank s has sent to r in segment s.
    AllToAll,
    /// The root's buffer has a segment for each rank and ends with every rank's part in its
    /// segment; it has filled its own. The buffer of any other rank is its part, and stays.
    Gather {
        /// Rank that gets all parts.
        root: usize,
    },
    /// The root's buffer has a segment for each rank, and stays. The buffer of any other rank ends
    /// with its segment.
    Scatter {
        /// Rank whose segments are sent.
        root: usize,
    },
    /// No rank leaves before every rank has entered.
    Barrier,
    /// Sends the buffer to one rank.
    Send {
        /// Destination.
        to: usize,
    },
    /// Fills the buffer from one rank.
    Recv {
        /// Source.
        from: usize,
    },
}

impl Operation {
    /// Returns the kind of the operation, without its arguments.
    pub fn kind(self) -> OperationKind {
        match self {
            Self::AllReduce(_) => OperationKind::AllReduce,
            Self::Reduce { .. } => OperationKind::Reduce,
            Self::Broadcast { .. } => OperationKind::Broadcast,
            Self::AllGather => OperationKind::AllGather,
            Self::ReduceScatter(_) => OperationKind::ReduceScatter,
            Self::AllToAll => OperationKind::AllToAll,
            Self::Gather { .. } => OperationKind::Gather,
            Self::Scatter { .. } => OperationKind::Scatter,
            Self::Barrier => OperationKind::Barrier,
            Self::Send { .. } => OperationKind::Send,
            Self::Recv { .. } => OperationKind::Recv,
        }
    }
}

impl Operation {
    /// Tells whether all ranks of the group take part.
    pub fn is_collective(self) -> bool {
        !matches!(self, Self::Send { .. } | Self::Recv { .. })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce(op) => write!(f, "all_reduce({op})"),
            Self::Reduce { root, op } => write!(f, "reduce({op}, root {root})"),
            Self::Broadcast { root } => write!(f, "broadcast(root {root})"),
            Self::AllGather => f.write_str("all_gather"),
            Self::ReduceScatter(op) => write!(f, "reduce_scatter({op})"),
            Self::AllToAll => f.write_str("all_to_all"),
            Self::Gather { root } => write!(f, "gather(root {root})"),
            Self::Scatter { root } => write!(f, "scatter(root {root})"),
            Self::Barrier => f.write_str("barrier"),
            Self::Send { to } => write!(f, "send(to {to})"),
            Self::Recv { from } => write!(f, "recv(from {from})"),
        }
    }
}

/// The kind of an [`Operation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are those of Operation")]
pub enum OperationKind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Barrier,
    Send,
    Recv,
}

impl OperationKind {
    /// Every kind.
    pub const ALL: [OperationKind; 11] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Barrier,
        Self::Send,
        Self::Recv,
    ];
}

/// Where a buffer lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Memory of this process.
    Host,
    /// Memory of a device, known by its address.
    Device,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

/// What an engine can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Kinds of memory that its operations accept.
    pub memory: Vec<MemoryKind>,
    /// Element types.
    pub dtypes: Vec<DType>,
    /// Operations.
    pub operations: Vec<OperationKind>,
    /// Whether blocking calls on borrowed slices and the control plane work.
    pub blocking_host_calls: bool,
}

impl Capabilities {
    /// Everything, on host memory.
    pub fn host() -> Self {
        Self {
            memory: vec![MemoryKind::Host],
            dtypes: DType::ALL.to_vec(),
            operations: OperationKind::ALL.to_vec(),
            blocking_host_calls: true,
        }
    }
}

/// Host memory borrowed for a blocking call.
#[derive(Debug)]
pub enum HostView<'a> {
    /// Memory that is read only: the source of a send.
    Shared {
        /// The elements as bytes, aligned for their type.
        bytes: &'a [u8],
        /// Type of the elements.
        dtype: DType,
    },
    /// Memory that is read and written.
    Exclusive {
        /// The elements as bytes, aligned for their type.
        bytes: &'a mut [u8],
        /// Type of the elements.
        dtype: DType,
    },
}

impl HostView<'_> {
    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Shared { dtype, .. } | Self::Exclusive { dtype, .. } => *dtype,
        }
    }

    /// Returns the elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared { bytes, .. } => bytes,
            Self::Exclusive { bytes, .. } => bytes,
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes().len() / self.dtype().size_bytes()
    }

    /// Tells whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }
}

/// What goes with an operation.
#[derive(Debug, Clone)]
pub struct Call {
    /// When it must have ended.
    pub deadline: Instant,
    /// How long that was from the call, for messages.
    pub timeout: Duration,
    /// Its entry in the flight recorder, for the engine to mark.
    pub record: Record,
}

/// One message of [`Engine::run_batch`].
#[derive(Debug)]
pub struct Transfer<'a> {
    /// [`Operation::Send`] or [`Operation::Recv`].
    pub operation: Operation,
    /// What is sent or filled.
    pub view: HostView<'a>,
}

/// What [`Engine::sub_group`] makes.
#[derive(Debug, Clone, Copy)]
pub struct SubGroup<'a> {
    /// Unique among all groups, and equal on all members.
    pub identity: &'a str,
    /// Ranks of the old group in the new group's order; they contain this rank.
    pub members: &'a [usize],
    /// Deadline of its collectives.
    pub timeout: Duration,
    /// How collectives are carried out; `None` = as in the old group. For engines that have a choice.
    pub algorithm: Option<Algorithm>,
}

/// Moves the bytes of one group. Object safe; a [`ProcessGroup`](crate::ProcessGroup) checks the
/// arguments against [`Engine::capabilities`] before it calls.
pub trait Engine: Send + Sync {
    /// Returns the name under which a user chooses the engine.
    fn name(&self) -> &'static str;

    /// Returns this rank in the group.
    fn rank(&self) -> usize;

    /// Returns the number of ranks in the group.
    fn world_size(&self) -> usize;

    /// Returns what the engine can do.
    fn capabilities(&self) -> Capabilities;

    /// Starts `operation` behind all operations started before and returns at once. The buffer
    /// belongs to the work until [`Work::wait`].
    ///
    /// # Errors
    /// The session's failure when it has one; otherwise errors come from the work.
    fn start(&self, operation: Operation, buffer: Buffer, call: Call) -> Result<Work>;

    /// Runs `operation` on borrowed host memory, behind all operations started before.
    ///
    /// The default copies through [`Engine::start`].
    ///
    /// # Errors
    /// Those of the collective.
    fn run(&self, operation: Operation, view: HostView<'_>, call: Call) -> Result<()> {
        let mut copy = HostBuffer::zeros(view.dtype(), view.len());
        copy.as_bytes_mut().copy_from_slice(view.bytes());
        let done = self.start(operation, Buffer::Host(copy), call)?.wait()?.into_host()?;
        if let HostView::Exclusive { bytes, .. } = view {
            bytes.copy_from_slice(done.as_bytes());
        }
        Ok(())
    }

    /// Runs sends and receives at the same time, behind all operations started before; those of
    /// the same kind and peer keep their order.
    ///
    /// # Errors
    /// Those of the messages.
    fn run_batch(&self, transfers: Vec<Transfer<'_>>, call: Call) -> Result<()>;

    /// Makes the engine of a new group from some ranks of this one, with connections and an
    /// order of its own.
    ///
    /// # Collective
    /// Called by all members, and by no other rank.
    ///
    /// # Errors
    /// When a member does not come in time, or the session has failed.
    fn sub_group(&self, spec: SubGroup<'_>) -> Result<Arc<dyn Engine>>;

    /// Connects the ranks' devices, if the engine does that when they are first needed.
    ///
    /// # Collective
    /// Called by all ranks.
    ///
    /// # Errors
    /// When that fails.
    fn prepare_devices(&self) -> Result<()> {
        Ok(())
    }

    /// Ends the session of every rank with an error that names this rank and `reason`.
    fn abort(&self, reason: &str);

    /// Returns the number of payload bytes that this rank has sent in this group.
    fn bytes_sent(&self) -> u64 {
        0
    }

    /// Returns a number per rank that is equal for ranks on the same machine.
    fn machines(&self) -> Vec<u64> {
        vec![0; self.world_size()]
    }

    /// Returns the failure that has ended the session, if any.
    fn failure(&self) -> Option<CommError> {
        None
    }

    /// How many operations on devices were started in the session: see
    /// [`ProcessGroup::device_mark`](crate::ProcessGroup::device_mark).
    fn device_mark(&self) -> u64 {
        0
    }

    /// The oldest of them, counted from 0, that the failure has cost its result.
    fn first_given_up(&self) -> Option<u64> {
        None
    }
}
