//! All-reduce by recursive doubling: with a power of two of ranks, round k exchanges everything
//! with the partner whose place differs in bit k. The ranks beyond the largest power of two give
//! their data to a partner first and get the result at the end.
//!
//! Determinism: both partners name the operands in the same order, the one at the lower place
//! first, so both get the same bits.

use super::{Collective, Halt};
use crate::ReduceOp;
use crate::flow::{self, FlowId, Fold, Gate, Incoming, Outgoing};
use crate::header::Header;
use crate::reduce::Reduction;

impl Collective<'_> {
    pub(super) fn all_reduce_doubling(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let all = 0..data.len();
        let place = self.topology.position(self.rank);
        let core = 1 << self.size.ilog2();
        let at = |place: usize| self.topology.at(place);
        let give = |to: usize, round: u8, gate: Gate| {
            Outgoing::new(to, header.with_round(round), vec![all.clone()], gate)
        };
        let take = |from: usize, round: u8, fold: Fold, gate: Gate| {
            Incoming::new(from, header.with_round(round), vec![(all.clone(), fold)], gate)
        };
        const FIRST: u8 = 64;
        const LAST: u8 = 65;

        if place >= core {
            let partner = at(place - core);
            flow::run(self, data, vec![give(partner, FIRST, Gate::open())], Vec::new())?;
            let incoming = take(partner, LAST, Fold::Store, Gate::open());
            return flow::run(self, data, Vec::new(), vec![incoming]);
        }
        let extra = (place + core < self.size).then(|| at(place + core));
        if let Some(extra) = extra {
            let fold = Fold::Reduce(Reduction::partial(op));
            flow::run(self, data, Vec::new(), vec![take(extra, FIRST, fold, Gate::open())])?;
        }
        let mut round = 0;
        while 1 << round < core {
            let other = place ^ (1 << round);
            let reduction = match 2 << round >= core {
                true => Reduction::last(op, self.size),
                false => Reduction::partial(op),
            };
            let fold = match other < place {
                true => Fold::ReduceLeft(reduction),
                false => Fold::Reduce(reduction),
            };
            // What has not been sent must not be overwritten.
            let incoming = take(at(other), round, fold, Gate::behind(FlowId::Out(0)));
            flow::run(self, data, vec![give(at(other), round, Gate::open())], vec![incoming])?;
            round += 1;
        }
        if let Some(extra) = extra {
            flow::run(self, data, vec![give(extra, LAST, Gate::open())], Vec::new())?;
        }
        Ok(())
    }
}
