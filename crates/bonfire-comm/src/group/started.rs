//! The calls that return at once, with the work that they have started.

use super::ProcessGroup;
use crate::{Buffer, Operation, ReduceOp, Result, Work};

impl ProcessGroup {
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
    /// [`CommError::Unsupported`](crate::CommError::Unsupported), [`CommError::NoSuchRank`](crate::CommError::NoSuchRank) or [`CommError::WrongLength`](crate::CommError::WrongLength) for
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
}
