//! The calls that block, on borrowed slices.

use std::time::Duration;

use super::{ProcessGroup, exclusive, shared};
use crate::engine::Transfer;
use crate::host_engine::nothing;
use crate::{Element, Operation, ReduceOp, Result};

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

impl ProcessGroup {
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
    /// [`CommError::NoSuchRank`](crate::CommError::NoSuchRank) for a root outside; otherwise the failures of any collective.
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
    /// [`CommError::NoSuchRank`](crate::CommError::NoSuchRank) for a root outside; otherwise the failures of any collective.
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
    /// [`CommError::WrongLength`](crate::CommError::WrongLength) for other shapes; otherwise the failures of any collective.
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
    /// [`CommError::WrongLength`](crate::CommError::WrongLength) for other shapes; otherwise the failures of any collective.
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
    /// [`CommError::WrongLength`](crate::CommError::WrongLength) for other shapes; otherwise the failures of any collective.
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
    /// [`CommError::WrongLength`](crate::CommError::WrongLength), [`CommError::NoSuchRank`](crate::CommError::NoSuchRank); otherwise the failures of any
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
    /// [`CommError::WrongLength`](crate::CommError::WrongLength), [`CommError::NoSuchRank`](crate::CommError::NoSuchRank); otherwise the failures of any
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
    /// [`CommError::Timeout`](crate::CommError::Timeout) names every rank that has not come; otherwise the failures of any
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
    /// [`CommError::NoSuchRank`](crate::CommError::NoSuchRank); [`CommError::Mismatch`](crate::CommError::Mismatch) on the receiver if it expects another
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
    /// [`CommError::NoSuchRank`](crate::CommError::NoSuchRank) or [`CommError::WrongLength`](crate::CommError::WrongLength) for arguments; otherwise the
    /// failures of any collective.
    #[track_caller]
    pub fn run_in_place<T: Element>(&self, operation: Operation, data: &mut [T]) -> Result<()> {
        self.run(operation, exclusive(data))
    }
}
