//! Collectives in which every rank talks to its neighbours in the ring.
//!
//! All-reduce with W ranks is 2(W-1) steps: in step t the rank at place p sends the segment of the
//! rank at p - t, and receives that of the rank at p - t - 1 (modulo W). What is received in steps
//! below W-1 is reduced, the rest is final and put straight into its place. All steps are one flow
//! in each direction: a byte may be sent when it was the rank's own from the start, or as soon as
//! it was received and reduced. INVARIANT: a final byte cannot arrive before this rank has sent
//! its own contribution to it, because the byte depends on that; so nothing unsent is overwritten.
//!
//! Determinism: the segment of the rank at place s is always reduced in the order s, s+1, ..., and
//! everybody gets the bytes of the rank that finished it.

use std::ops::Range;

use super::{Collective, Halt, segments};
use crate::ReduceOp;
use crate::flow::{self, FlowId, Fold, Gate, Incoming, Outgoing};
use crate::header::Header;
use crate::reduce::Reduction;

impl Collective<'_> {
    pub(super) fn all_reduce_ring(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let members: Vec<usize> = (0..self.size).map(|place| self.topology.at(place)).collect();
        let segments = segments(data.len(), header.dtype, self.size);
        let of_place = members.iter().map(|rank| segments[*rank].clone()).collect();
        self.all_reduce_around(header, data, &members, of_place, Around::Whole(op))
    }

    /// Reduces over `members`, in their order, of which this rank is one. `segments` are by place
    /// among the members.
    pub(super) fn all_reduce_around(
        &mut self,
        header: Header,
        data: &mut [u8],
        members: &[usize],
        segments: Vec<Range<usize>>,
        reduction: Around,
    ) -> Result<(), Halt> {
        let size = members.len();
        let Some(place) = members.iter().position(|rank| *rank == self.rank) else {
            return Ok(());
        };
        let back = |steps: usize| (place + 2 * size - steps) % size;
        let steps = 2 * (size - 1);
        let sends = (0..steps).map(|t| segments[back(t)].clone()).collect();
        let receives = (0..steps)
            .map(|t| (segments[back(t + 1)].clone(), reduction.fold_of_step(t, size)))
            .collect();
        let own = segments[place].len();
        self.around(
            header,
            data,
            (members[(place + 1) % size], members[back(1)]),
            sends,
            receives,
            own,
        )
    }

    pub(super) fn reduce_scatter_ring(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let segments = segments(data.len(), header.dtype, self.size);
        let steps = self.size - 1;
        let whole = Around::Whole(op);
        let sends = (0..steps).map(|t| segments[self.back(t + 1)].clone()).collect();
        let receives = (0..steps)
            .map(|t| (segments[self.back(t + 2)].clone(), whole.fold_of_step(t, self.size)))
            .collect();
        let own = segments[self.back(1)].len();
        self.around(header, data, (self.next(), self.back(1)), sends, receives, own)
    }

    pub(super) fn all_gather_ring(&mut self, header: Header, data: &mut [u8]) -> Result<(), Halt> {
        let segments = segments(data.len(), header.dtype, self.size);
        let steps = self.size - 1;
        let sends = (0..steps).map(|t| segments[self.back(t)].clone()).collect();
        let receives =
            (0..steps).map(|t| (segments[self.back(t + 1)].clone(), Fold::Store)).collect();
        let own = segments[self.rank].len();
        self.around(header, data, (self.next(), self.back(1)), sends, receives, own)
    }

    /// Passes the root's data along the ring.
    pub(super) fn broadcast_chain(
        &mut self,
        header: Header,
        data: &mut [u8],
        root: usize,
    ) -> Result<(), Halt> {
        let all = 0..data.len();
        let mut ins = Vec::new();
        let mut gate = Gate::open();
        if self.rank != root {
            let spans = vec![(all.clone(), Fold::Store)];
            ins.push(Incoming::new(self.back(1), header, spans, Gate::open()));
            gate = Gate::behind(FlowId::In(0));
        }
        let mut outs = Vec::new();
        if self.next() != root {
            outs.push(Outgoing::new(self.next(), header, vec![all], gate));
        }
        flow::run(self, data, outs, ins)
    }

    /// Passes partial results along the ring, from the rank after the root to the root.
    pub(super) fn reduce_chain(
        &mut self,
        header: Header,
        data: &mut [u8],
        root: usize,
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let all = 0..data.len();
        let mut ins = Vec::new();
        let mut gate = Gate::open();
        if self.back(1) != root {
            let reduction = match self.rank == root {
                true => Reduction::last(op, self.size),
                false => Reduction::partial(op),
            };
            let spans = vec![(all.clone(), Fold::Reduce(reduction))];
            ins.push(Incoming::new(self.back(1), header, spans, Gate::open()));
            gate = Gate::behind(FlowId::In(0));
        }
        let mut outs = Vec::new();
        if self.rank != root {
            outs.push(Outgoing::new(self.next(), header, vec![all], gate));
        }
        flow::run(self, data, outs, ins)
    }

    /// Sends to one rank what the other gives. `own` bytes can go at once.
    fn around(
        &mut self,
        header: Header,
        data: &mut [u8],
        (next, previous): (usize, usize),
        sends: Vec<Range<usize>>,
        receives: Vec<(Range<usize>, Fold)>,
        own: usize,
    ) -> Result<(), Halt> {
        let gate = Gate::ahead_of(FlowId::In(0), own);
        let out = Outgoing::new(next, header, sends, gate);
        let incoming = Incoming::new(previous, header, receives, Gate::open());
        flow::run(self, data, vec![out], vec![incoming])
    }

    pub(super) fn next(&self) -> usize {
        self.topology.at(self.topology.position(self.rank) + 1)
    }

    /// The rank `steps` places before this one.
    pub(super) fn back(&self, steps: usize) -> usize {
        let place = self.topology.position(self.rank);
        self.topology.at(place + 2 * self.size - steps % self.size)
    }
}

/// What a ring reduces.
#[derive(Debug, Clone, Copy)]
pub(super) enum Around {
    /// All contributions of the group.
    Whole(ReduceOp),
    /// The partial results of each machine, of `ranks` contributions in all.
    Partial { op: ReduceOp, ranks: usize },
}

impl Around {
    fn fold_of_step(self, step: usize, size: usize) -> Fold {
        let (op, ranks) = match self {
            Self::Whole(op) => (op, size),
            Self::Partial { op, ranks } => (op, ranks),
        };
        match (step + 2).cmp(&size) {
            std::cmp::Ordering::Less => Fold::Reduce(Reduction::partial(op)),
            std::cmp::Ordering::Equal => Fold::Reduce(Reduction::last(op, ranks)),
            std::cmp::Ordering::Greater => Fold::Store,
        }
    }
}
