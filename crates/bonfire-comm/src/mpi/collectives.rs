//! The collectives, once all ranks are known to be in the same one.
//!
//! Reductions are not left to MPI, for two reasons. MPI recommends, but does not promise, that
//! the same inputs give the same bits. And it knows neither `bf16` nor our rule that a NaN wins,
//! so that it could only call functions of ours back, which no network card does for it; and Open
//! MPI's nonblocking all-reduce, when it works in place or in the order of the ranks, sends whole
//! buffers up and down a tree. Here MPI moves the bytes and each rank reduces its block in the
//! order of the ranks: the same bits with every library, at any time, and each byte crosses the
//! network about twice, as on a ring.

use std::ops::Range;
use std::time::Instant;

use super::lane::{Lane, spans};
use super::loan::Target;
use super::sys::{Memory, Pending};
use super::wait::{Halt, Wait};
use crate::reduce::{Reduction, combine_bytes};
use crate::{CommError, DType, Operation, ReduceOp, Result};

/// Up to this many bytes over all ranks, everybody gets everything and reduces it all: one
/// exchange instead of two.
const DIRECT_BYTES: usize = 64 << 10;
/// Bytes that a rank gives MPI at a time, per rank of the group and in all: enough that latency
/// does not count, few enough that they stay in the cache between a copy, an exchange and a
/// reduction.
const BLOCK_BYTES: usize = 64 << 10;
const LEAST_BYTES: usize = 1 << 20;
const MOST_BYTES: usize = 64 << 20;

/// A collective under way.
pub(super) struct Collective<'a> {
    pub(super) lane: &'a Lane,
    pub(super) dtype: DType,
    pub(super) deadline: Instant,
}

impl Collective<'_> {
    pub(super) async fn run(&self, operation: Operation, data: &mut Target) -> Result<(), Halt> {
        match operation {
            // The exchange of headers was one.
            Operation::Barrier => Ok(()),
            Operation::AllReduce(op) => self.reduce(data, op, None).await,
            Operation::Reduce { root, op } => self.reduce(data, op, Some(root)).await,
            Operation::Broadcast { root } => self.broadcast(data, root).await,
            Operation::AllGather => self.all_gather(data).await,
            Operation::ReduceScatter(op) => self.reduce_scatter(data, op).await,
            Operation::AllToAll => self.all_to_all(data).await,
            Operation::Gather { root } => self.gather(data, root).await,
            Operation::Scatter { root } => self.scatter(data, root).await,
            Operation::Send { .. } | Operation::Recv { .. } => {
                let detail = format!("{operation} as a collective");
                Err(CommError::Internal { detail }.into())
            }
        }
    }

    /// Reduces to the root, or to everybody when there is none.
    async fn reduce(
        &self,
        data: &mut Target,
        op: ReduceOp,
        root: Option<usize>,
    ) -> Result<(), Halt> {
        for span in spans(data.len(), chunk_bytes(self.size())) {
            if span.len() * self.size() <= DIRECT_BYTES {
                self.reduce_direct(data, span, op, root).await?;
            } else {
                self.reduce_blocks(data, span, op, root).await?;
            }
        }
        Ok(())
    }

    async fn reduce_direct(
        &self,
        data: &mut Target,
        span: Range<usize>,
        op: ReduceOp,
        root: Option<usize>,
    ) -> Result<(), Halt> {
        let len = span.len();
        let own = self.load(data, span.clone(), len)?;
        let (own, mut all) =
            self.collect(own, self.lane.take(len * self.size()), len, root).await?;
        if root.is_none_or(|root| root == self.rank()) {
            self.fold(all.bytes_mut(), len, op)?;
            data.store(span.start, &all.bytes()[..len])?;
        }
        self.lane.give_back([own, all]);
        Ok(())
    }

    /// Exchanges blocks, so that rank r has everybody's block r, reduces them, and collects the
    /// reduced blocks. The last block may be shorter; what fills it up is reduced in vain.
    async fn reduce_blocks(
        &self,
        data: &mut Target,
        span: Range<usize>,
        op: ReduceOp,
        root: Option<usize>,
    ) -> Result<(), Halt> {
        let (len, width) = (span.len(), self.dtype.size_bytes());
        let block = (len / width).div_ceil(self.size()) * width;
        let own = self.load(data, span.clone(), block * self.size())?;
        let (own, mut all) = self.exchange(own, block).await?;
        self.fold(all.bytes_mut(), block, op)?;
        let (all, own) = self.collect(all, own, block, root).await?;
        if root.is_none_or(|root| root == self.rank()) {
            data.store(span.start, &own.bytes()[..len])?;
        }
        self.lane.give_back([own, all]);
        Ok(())
    }

    async fn reduce_scatter(&self, data: &mut Target, op: ReduceOp) -> Result<(), Halt> {
        let part = data.len() / self.size();
        for span in spans(part, piece_bytes(self.size())) {
            let block = span.len();
            let pieces = self.load_pieces(data, part, &span)?;
            let (pieces, mut all) = self.exchange(pieces, block).await?;
            self.fold(all.bytes_mut(), block, op)?;
            data.store(self.rank() * part + span.start, &all.bytes()[..block])?;
            self.lane.give_back([pieces, all]);
        }
        Ok(())
    }

    async fn all_to_all(&self, data: &mut Target) -> Result<(), Halt> {
        let part = data.len() / self.size();
        for span in spans(part, piece_bytes(self.size())) {
            let pieces = self.load_pieces(data, part, &span)?;
            let (pieces, all) = self.exchange(pieces, span.len()).await?;
            self.store_pieces(data, part, &span, &all)?;
            self.lane.give_back([pieces, all]);
        }
        Ok(())
    }

    async fn all_gather(&self, data: &mut Target) -> Result<(), Halt> {
        let part = data.len() / self.size();
        for span in spans(part, piece_bytes(self.size())) {
            let own = self.load(data, shifted(&span, self.rank() * part), span.len())?;
            let all = self.lane.take(span.len() * self.size());
            let (own, all) = self.collect(own, all, span.len(), None).await?;
            self.store_pieces(data, part, &span, &all)?;
            self.lane.give_back([own, all]);
        }
        Ok(())
    }

    async fn broadcast(&self, data: &mut Target, root: usize) -> Result<(), Halt> {
        for span in spans(data.len(), chunk_bytes(self.size())) {
            let len = span.len();
            let is_root = self.rank() == root;
            let memory =
                if is_root { self.load(data, span.clone(), len)? } else { self.lane.take(len) };
            let memory = self.wait(self.lane.comm.broadcast(memory, len, root)).await?;
            if is_root {
                self.lane.add_sent(len);
            } else {
                data.store(span.start, &memory.bytes()[..len])?;
            }
            self.lane.give_back([memory]);
        }
        Ok(())
    }

    async fn gather(&self, data: &mut Target, root: usize) -> Result<(), Halt> {
        let (part, offset) = self.part_at_root(data, root);
        for span in spans(part, piece_bytes(self.size())) {
            let own = self.load(data, shifted(&span, offset), span.len())?;
            let all = self.lane.take(span.len() * self.size());
            let (own, all) = self.collect(own, all, span.len(), Some(root)).await?;
            if self.rank() == root {
                self.store_pieces(data, part, &span, &all)?;
            }
            self.lane.give_back([own, all]);
        }
        Ok(())
    }

    async fn scatter(&self, data: &mut Target, root: usize) -> Result<(), Halt> {
        let (part, _) = self.part_at_root(data, root);
        let is_root = self.rank() == root;
        for span in spans(part, piece_bytes(self.size())) {
            let len = span.len();
            let pieces =
                if is_root { self.load_pieces(data, part, &span)? } else { self.lane.take(0) };
            let scattered = self.lane.comm.scatter(pieces, self.lane.take(len), len, root);
            let (pieces, own) = self.wait(scattered).await?;
            if is_root {
                self.lane.add_sent(len * (self.size() - 1));
            } else {
                data.store(span.start, &own.bytes()[..len])?;
            }
            self.lane.give_back([pieces, own]);
        }
        Ok(())
    }

    /// Length of a part, and where this rank's begins, when only the root has all parts.
    fn part_at_root(&self, data: &Target, root: usize) -> (usize, usize) {
        if self.rank() != root {
            return (data.len(), 0);
        }
        let part = data.len() / self.size();
        (part, self.rank() * part)
    }

    /// Sends block s to rank s and gets this rank's block from each.
    async fn exchange(&self, out: Memory, block: usize) -> Result<(Memory, Memory), Halt> {
        let into = self.lane.take(block * self.size());
        let done = self.wait(self.lane.comm.all_to_all(out, into, block)).await?;
        self.lane.add_sent(block * (self.size() - 1));
        Ok(done)
    }

    /// Puts a block of every rank into `all`, of the root or of everybody.
    async fn collect(
        &self,
        own: Memory,
        all: Memory,
        block: usize,
        root: Option<usize>,
    ) -> Result<(Memory, Memory), Halt> {
        let comm = &self.lane.comm;
        let (pending, receivers) = match root {
            None => (comm.all_gather(own, all, block), self.size() - 1),
            Some(root) => (comm.gather(own, all, block, root), usize::from(root != self.rank())),
        };
        let done = self.wait(pending).await?;
        self.lane.add_sent(block * receivers);
        Ok(done)
    }

    async fn wait<M: Unpin>(&self, pending: Result<Pending<M>>) -> Result<M, Halt> {
        self.lane.until(self.deadline, Wait::Data, pending).await
    }

    /// Reduces the blocks of all ranks into the first, in the order of the ranks.
    fn fold(&self, blocks: &mut [u8], block: usize, op: ReduceOp) -> Result<()> {
        let (first, others) = blocks.split_at_mut(block);
        let others: Vec<&[u8]> = others.chunks_exact(block).take(self.size() - 1).collect();
        combine_bytes(self.dtype, Reduction::last(op, self.size()), first, &others)
    }

    /// Copies a span into memory of at least `room` bytes.
    fn load(&self, data: &Target, span: Range<usize>, room: usize) -> Result<Memory> {
        let mut memory = self.lane.take(room.max(span.len()));
        let len = span.len();
        data.load(span, &mut memory.bytes_mut()[..len])?;
        Ok(memory)
    }

    /// Copies the same span of every part into memory, one behind the other.
    fn load_pieces(&self, data: &Target, part: usize, span: &Range<usize>) -> Result<Memory> {
        let mut memory = self.lane.take(span.len() * self.size());
        for (rank, piece) in memory.bytes_mut().chunks_exact_mut(span.len()).enumerate() {
            if rank < self.size() {
                data.load(shifted(span, rank * part), piece)?;
            }
        }
        Ok(memory)
    }

    /// The reverse of [`Self::load_pieces`].
    fn store_pieces(
        &self,
        data: &mut Target,
        part: usize,
        span: &Range<usize>,
        memory: &Memory,
    ) -> Result<()> {
        let pieces = memory.bytes().chunks_exact(span.len()).take(self.size());
        for (rank, piece) in pieces.enumerate() {
            data.store(rank * part + span.start, piece)?;
        }
        Ok(())
    }

    fn rank(&self) -> usize {
        self.lane.comm.rank()
    }

    fn size(&self) -> usize {
        self.lane.comm.size()
    }
}

fn shifted(span: &Range<usize>, by: usize) -> Range<usize> {
    span.start + by..span.end + by
}

/// Bytes that a rank gives MPI at a time.
fn chunk_bytes(size: usize) -> usize {
    BLOCK_BYTES.saturating_mul(size).clamp(LEAST_BYTES, MOST_BYTES)
}

/// The same for each rank's part, in whole elements of every type.
fn piece_bytes(size: usize) -> usize {
    (chunk_bytes(size) / size / 8 * 8).max(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_at_a_time_is_whole_elements_and_bounded() {
        for size in [2, 3, 7, 16, 1000, 100_000] {
            let (chunk, piece) = (chunk_bytes(size), piece_bytes(size));
            assert!(chunk.is_multiple_of(8) && piece.is_multiple_of(8), "{size}");
            assert!((LEAST_BYTES..=MOST_BYTES).contains(&chunk), "{size}");
            assert!(piece >= 8 && piece * size <= MOST_BYTES, "{size}");
        }
    }
}
