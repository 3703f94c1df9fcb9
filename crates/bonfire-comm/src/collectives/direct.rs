//! Small all-reduces: everybody gets all contributions and reduces them, which costs one latency
//! instead of 2(W-1), in the order of the ring, which gives the ring's bits.

use super::{Collective, Halt, segments};
use crate::flow::{self, Fold, Gate, Incoming, Outgoing};
use crate::header::Header;
use crate::reduce::{Reduction, combine_bytes};
use crate::{DType, ReduceOp, Result};

impl Collective<'_> {
    pub(super) fn all_reduce_direct(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        // Each contribution begins at a multiple of 8, for any element type.
        let stride = data.len().next_multiple_of(8);
        let mut scratch = std::mem::take(self.scratch_of_direct());
        let room = &mut scratch.bytes(stride * self.size)[..stride * self.size];
        let len = data.len();
        let span = |rank: usize| rank * stride..rank * stride + len;
        room[span(self.rank)].copy_from_slice(data);
        let peers = || (1..self.size).map(|distance| self.back(self.size - distance));
        let outs = peers()
            .map(|peer| Outgoing::new(peer, header, vec![span(self.rank)], Gate::open()))
            .collect();
        let ins = peers()
            .map(|peer| Incoming::new(peer, header, vec![(span(peer), Fold::Store)], Gate::open()))
            .collect();
        let result = flow::run(self, room, outs, ins);
        if result.is_ok() {
            let order: Vec<usize> = (0..self.size).map(|place| self.topology.at(place)).collect();
            fold_all(header.dtype, op, data, &order, Rounding::Each, |rank| &room[span(rank)])?;
        }
        *self.scratch_of_direct() = scratch;
        result
    }

    fn scratch_of_direct(&mut self) -> &mut flow::Scratch {
        &mut self.turns.contributions
    }
}

/// When 16-bit elements are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    /// After each contribution, as on the way around a ring.
    Each,
    /// At the end, as in the slots of shared memory.
    Once,
}

/// Reduces all contributions into `data`, segment by segment in the order of the ring: that of the
/// rank at place s in the order s, s+1, ...
pub(super) fn fold_all<'a>(
    dtype: DType,
    op: ReduceOp,
    data: &mut [u8],
    order: &[usize],
    rounding: Rounding,
    contribution: impl Fn(usize) -> &'a [u8],
) -> Result<()> {
    let size = order.len();
    let (partial, last) = (Reduction::partial(op), Reduction::last(op, size));
    let segments = segments(data.len(), dtype, size);
    for (place, rank) in order.iter().enumerate() {
        let span = segments[*rank].clone();
        let target = &mut data[span.clone()];
        target.copy_from_slice(&contribution(*rank)[span.clone()]);
        let others = (1..size).map(|step| contribution(order[(place + step) % size]));
        let sources: Vec<&[u8]> = others.map(|source| &source[span.clone()]).collect();
        match (rounding, sources.split_last()) {
            (Rounding::Each, Some((final_source, sources))) => {
                for source in sources {
                    combine_bytes(dtype, partial, target, &[source])?;
                }
                combine_bytes(dtype, last, target, &[final_source])?;
            }
            _ => combine_bytes(dtype, last, target, &sources)?,
        }
    }
    Ok(())
}
