//! All-reduce in three steps: within each machine, between machines, within each machine.
//!
//! With equally many ranks on all machines, each rank has a segment of its own after the first
//! step, and the ranks at the same place of all machines go round a ring with it, so that all
//! connections carry data at once. Otherwise one rank of each machine takes part in the ring.
//!
//! Determinism: the order within a machine is that of `shared`, the order of the machines that of
//! the ring.

use super::ring::Around;
use super::shared::Collect;
use super::{Collective, Halt, segments};
use crate::ReduceOp;
use crate::header::Header;
use crate::reduce::Reduction;

/// Bytes that go through the three steps at a time: small enough that what one step leaves in the
/// L3 cache the next finds there.
const CHUNK_BYTES: usize = 4 << 20;

impl Collective<'_> {
    pub(super) fn all_reduce_hierarchical(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        if data.is_empty() {
            return self.all_reduce_chunk(header, data, op);
        }
        data.chunks_mut(CHUNK_BYTES).try_for_each(|chunk| self.all_reduce_chunk(header, chunk, op))
    }

    fn all_reduce_chunk(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let machines = self.topology.machines();
        let own = &machines[self.topology.machine_of(self.rank)];
        let is_even = machines.iter().all(|ranks| ranks.len() == own.len());
        let place = own.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let parts = if is_even { own.len() } else { 1 };
        // The place of the ranks that go round: each its own, or the first of each machine.
        let place_around = if is_even { place } else { 0 };
        let around: Vec<usize> = machines.iter().map(|ranks| ranks[place_around]).collect();
        let leader = own[0];
        let alone = own.len() == 1;
        let partial = Reduction::partial(op);
        let by_place = segments(data.len(), header.dtype, own.len());

        if !alone {
            let collect = if is_even { Collect::Nowhere } else { Collect::At(leader) };
            self.shared_reduce(self.near()?, header, data, by_place.clone(), partial, collect)?;
        }
        if is_even || self.rank == leader {
            let span = if parts == 1 { 0..data.len() } else { by_place[place].clone() };
            let part = &mut data[span];
            let cut = segments(part.len(), header.dtype, around.len());
            let reduction = Around::Partial { op, ranks: self.size };
            self.all_reduce_around(header, part, &around, cut, reduction)?;
        }
        match (alone, is_even) {
            (true, _) => Ok(()),
            (false, true) => self.shared_all_gather(self.near()?, header, data, by_place),
            (false, false) if self.rank == leader => self.shared_give(header, data),
            (false, false) => self.shared_take(header, data, leader),
        }
    }
}
