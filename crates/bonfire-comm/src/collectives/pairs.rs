//! What goes between two ranks at a time.

use super::{Collective, Halt, segments};
use crate::flow::{self, FlowId, Fold, Gate, Incoming, Outgoing};
use crate::header::Header;

impl Collective<'_> {
    /// In step t, ranks whose places add up to t (modulo W) exchange their segments.
    pub(super) fn all_to_all(&mut self, header: Header, data: &mut [u8]) -> Result<(), Halt> {
        let segments = segments(data.len(), header.dtype, self.size);
        let place = self.topology.position(self.rank);
        for step in 0..self.size {
            let other = self.topology.at(step + self.size - place);
            if other == self.rank {
                continue;
            }
            let span = segments[other].clone();
            let out = Outgoing::new(other, header, vec![span.clone()], Gate::open());
            // What has not been sent must not be overwritten.
            let gate = Gate::behind(FlowId::Out(0));
            let incoming = Incoming::new(other, header, vec![(span, Fold::Store)], gate);
            flow::run(self, data, vec![out], vec![incoming])?;
        }
        Ok(())
    }

    /// `data` has a segment for each rank on the root, and is one elsewhere.
    pub(super) fn gather(
        &mut self,
        header: Header,
        data: &mut [u8],
        root: usize,
    ) -> Result<(), Halt> {
        if self.rank != root {
            return self.send(header, data, root);
        }
        let segments = segments(data.len(), header.dtype, self.size);
        let from = |rank: usize| {
            let spans = vec![(segments[rank].clone(), Fold::Store)];
            Incoming::new(rank, header, spans, Gate::open())
        };
        let ins = (0..self.size).filter(|rank| *rank != root).map(from).collect();
        flow::run(self, data, Vec::new(), ins)
    }

    /// `data` has a segment for each rank on the root, and becomes one elsewhere.
    pub(super) fn scatter(
        &mut self,
        header: Header,
        data: &mut [u8],
        root: usize,
    ) -> Result<(), Halt> {
        if self.rank == root {
            return self.deal(header, data);
        }
        self.recv(header, data, root)
    }

    /// Sends each rank its segment.
    pub(super) fn deal(&mut self, header: Header, data: &[u8]) -> Result<(), Halt> {
        let segments = segments(data.len(), header.dtype, self.size);
        let others = (0..self.size).filter(|rank| *rank != self.rank);
        let outs = others
            .map(|rank| {
                let part = &data[segments[rank].clone()];
                let spans = std::iter::once(0..part.len()).collect();
                (Outgoing::new(rank, header, spans, Gate::open()), part)
            })
            .collect();
        flow::run_apart(self, outs, Vec::new())
    }

    /// Waits for everybody: in round k, a rank hears of the 2^k ranks before it.
    pub(super) fn barrier(&mut self, header: Header) -> Result<(), Halt> {
        let mut distance = 1;
        let mut round = 0;
        while distance < self.size {
            let header = header.with_round(round);
            let to = self.back(self.size - distance);
            let out = Outgoing::new(to, header, Vec::new(), Gate::open());
            let incoming = Incoming::new(self.back(distance), header, Vec::new(), Gate::open());
            flow::run(self, &mut [], vec![out], vec![incoming])?;
            distance *= 2;
            round += 1;
        }
        Ok(())
    }

    /// Sends `data` to `peer`.
    pub(super) fn send(&mut self, header: Header, data: &[u8], peer: usize) -> Result<(), Halt> {
        self.exchange(vec![(header, peer, data)], Vec::new())
    }

    /// Receives `data` from `peer`.
    pub(super) fn recv(
        &mut self,
        header: Header,
        data: &mut [u8],
        peer: usize,
    ) -> Result<(), Halt> {
        self.exchange(Vec::new(), vec![(header, peer, data)])
    }

    /// Sends and receives whole buffers at the same time.
    pub(crate) fn exchange(
        &mut self,
        sends: Vec<(Header, usize, &[u8])>,
        receives: Vec<(Header, usize, &mut [u8])>,
    ) -> Result<(), Halt> {
        let outs = sends.into_iter().map(|(header, peer, data)| {
            let spans = std::iter::once(0..data.len()).collect();
            (Outgoing::new(peer, header, spans, Gate::open()), data)
        });
        let ins = receives.into_iter().map(|(header, peer, data)| {
            let spans = vec![(0..data.len(), Fold::Store)];
            (Incoming::new(peer, header, spans, Gate::open()), data)
        });
        flow::run_apart(self, outs.collect(), ins.collect())
    }
}
