//! Streams of bytes between this rank and others, run together without blocking.
//!
//! A flow sends spans of a buffer to one peer, or receives spans of the same buffer from one peer.
//! A [`Gate`] bounds how far a flow may have come by how far other flows have: "send what was
//! received and reduced", "overwrite what was sent". These gates pipeline every algorithm at the
//! granularity of whatever the links accept, in a single loop that never blocks on one flow while
//! another could move.
//!
//! Flows of the same direction and peer share one stream of bytes, so they run one after the
//! other, in the order of the list, which must be the same on both ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use crate::collectives::{Collective, Halt};
use crate::header::{HEADER_BYTES, Header};
use crate::links::Links;
use crate::reduce::{Reduction, combine_bytes, combine_bytes_swapped};

/// Bytes that are received before they are reduced. They are read again at once, beside the same
/// span of the buffer, so both should stay in the L2 cache.
///
/// Tuned with `examples/allreduce_bw.rs`: 2 processes, TCP over loopback, 25 MiB, on 2 cores of an
/// AMD EPYC with 512 KiB of L2 each, while another build ran, so that differences below 1 s mean
/// little. System time of the same work by (send, scratch) in KiB, one run each, (64, 64) two:
/// (256, 256) 7.0 s, (64, 256) 6.3 s, (64, 64) 5.7 to 6.2 s, (32, 32) 7.7 s, (128, 64) 4.9 s,
/// (256, 64) 4.7 s.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Most bytes given to one send, so that the flows take turns; see [`SCRATCH_BYTES`].
const SEND_BYTES: usize = 256 * 1024;
/// The largest element.
const MAX_ELEMENT_BYTES: usize = 8;

/// Memory for received bytes before they are reduced, aligned for every element type.
#[derive(Default)]
pub(crate) struct Scratch {
    words: Vec<u64>,
}

impl Scratch {
    /// Memory for `wanted` bytes.
    pub(crate) fn bytes(&mut self, wanted: usize) -> &mut [u8] {
        let words = wanted.div_ceil(8);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        bytemuck::cast_slice_mut(&mut self.words)
    }
}

/// What is done with received bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fold {
    /// They are put into place.
    Store,
    /// They are reduced into place, as the right-hand operand.
    Reduce(Reduction),
    /// They are reduced into place, as the left-hand operand.
    ReduceLeft(Reduction),
}

/// Names a flow by its place in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowId {
    Out(usize),
    In(usize),
}

/// How far a flow may come: for each entry as far as that flow has, plus a lead. Without entries,
/// to its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Vec<(FlowId, usize)>);

impl Gate {
    /// No bound.
    pub(crate) fn open() -> Self {
        Self::default()
    }

    /// As far as `flow`.
    pub(crate) fn behind(flow: FlowId) -> Self {
        Self(vec![(flow, 0)])
    }

    /// As far as `flow` and `lead` bytes more.
    pub(crate) fn ahead_of(flow: FlowId, lead: usize) -> Self {
        Self(vec![(flow, lead)])
    }

    fn limit(&self, outs: &[Outgoing], ins: &[Incoming]) -> usize {
        let reached = |(flow, lead): &(FlowId, usize)| {
            lead + match flow {
                FlowId::Out(index) => outs[*index].sent,
                FlowId::In(index) => ins[*index].settled,
            }
        };
        self.0.iter().map(reached).min().unwrap_or(usize::MAX)
    }
}

/// Spans that go to a peer.
pub(crate) struct Outgoing {
    peer: usize,
    gate: Gate,
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    spans: Vec<Range<usize>>,
    index: usize,
    sent: usize,
    total: usize,
}

impl Outgoing {
    pub(crate) fn new(
        peer: usize,
        header: Header,
        mut spans: Vec<Range<usize>>,
        gate: Gate,
    ) -> Self {
        spans.retain(|span| !span.is_empty());
        let total = spans.iter().map(Range::len).sum();
        let header = header.encode();
        Self { peer, gate, header, header_sent: 0, spans, index: 0, sent: 0, total }
    }

    fn is_done(&self) -> bool {
        self.header_sent == HEADER_BYTES && self.sent == self.total
    }

    fn can_move(&self, limit: usize) -> bool {
        self.header_sent < HEADER_BYTES || self.sent < limit.min(self.total)
    }

    /// Sends what can be sent without waiting; returns the number of bytes.
    fn step(&mut self, links: &mut Links, data: &[u8], limit: usize) -> io::Result<usize> {
        let header = &self.header[self.header_sent..];
        let span = self.spans.get(self.index).cloned().unwrap_or(0..0);
        let len = span.len().min(limit.saturating_sub(self.sent)).min(SEND_BYTES);
        let payload = &data[span.start..span.start + len];
        let count = if header.is_empty() {
            links.try_send(self.peer, &[IoSlice::new(payload)])?
        } else {
            links.try_send(self.peer, &[IoSlice::new(header), IoSlice::new(payload)])?
        };
        let of_header = count.min(header.len());
        self.header_sent += of_header;
        let of_payload = count - of_header;
        self.sent += of_payload;
        if let Some(span) = self.spans.get_mut(self.index) {
            span.start += of_payload;
            self.index += usize::from(span.start == span.end);
        }
        Ok(count)
    }
}

/// Spans that come from a peer.
pub(crate) struct Incoming {
    peer: usize,
    gate: Gate,
    expected: Header,
    header: [u8; HEADER_BYTES],
    header_read: usize,
    spans: Vec<(Range<usize>, Fold)>,
    index: usize,
    /// Bytes in place, reduced where they had to be.
    settled: usize,
    total: usize,
    /// Bytes of an element that has not come whole.
    loose: [u8; MAX_ELEMENT_BYTES],
    num_loose: usize,
}

impl Incoming {
    pub(crate) fn new(
        peer: usize,
        expected: Header,
        mut spans: Vec<(Range<usize>, Fold)>,
        gate: Gate,
    ) -> Self {
        spans.retain(|(span, _)| !span.is_empty());
        let total = spans.iter().map(|(span, _)| span.len()).sum();
        Self {
            peer,
            gate,
            expected,
            header: [0; HEADER_BYTES],
            header_read: 0,
            spans,
            index: 0,
            settled: 0,
            total,
            loose: [0; MAX_ELEMENT_BYTES],
            num_loose: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.header_read == HEADER_BYTES && self.settled == self.total
    }

    fn can_move(&self, limit: usize) -> bool {
        self.header_read < HEADER_BYTES || self.settled + self.num_loose < limit.min(self.total)
    }

    /// Receives what is there without waiting; returns the number of bytes.
    fn step(
        &mut self,
        links: &mut Links,
        data: &mut [u8],
        scratch: &mut Scratch,
        limit: usize,
    ) -> Result<usize, Halt> {
        let (span, fold) = self.spans.get(self.index).cloned().unwrap_or((0..0, Fold::Store));
        let len = span.len().min(limit.saturating_sub(self.settled));
        let header = &mut self.header[self.header_read..];
        let header_len = header.len();
        let payload = match fold {
            Fold::Store => &mut data[span.start..span.start + len],
            Fold::Reduce(_) | Fold::ReduceLeft(_) => {
                let len = len.min(SCRATCH_BYTES);
                let room = scratch.bytes(SCRATCH_BYTES);
                room[..self.num_loose].copy_from_slice(&self.loose[..self.num_loose]);
                &mut room[self.num_loose.min(len)..len]
            }
        };
        let received = if header_len == 0 {
            links.try_recv(self.peer, &mut [IoSliceMut::new(payload)])
        } else {
            let parts = &mut [IoSliceMut::new(header), IoSliceMut::new(payload)];
            links.try_recv(self.peer, parts)
        };
        let count = received.map_err(|error| lost(self.peer, &error))?;
        let of_header = count.min(header_len);
        if of_header > 0 {
            self.header_read += of_header;
            self.check_header()?;
        }
        self.settle(count - of_header, span, fold, data, scratch)?;
        Ok(count)
    }

    fn check_header(&self) -> Result<(), Halt> {
        if self.header_read < HEADER_BYTES {
            return Ok(());
        }
        match Header::decode(&self.header) {
            Some(remote) if remote == self.expected => Ok(()),
            Some(remote) => Err(Halt::Mismatch { peer: self.peer, local: self.expected, remote }),
            None => Err(Halt::Malformed { peer: self.peer }),
        }
    }

    /// Puts `count` new bytes to their place.
    fn settle(
        &mut self,
        count: usize,
        span: Range<usize>,
        fold: Fold,
        data: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Halt> {
        let dtype = self.expected.dtype;
        let done = match fold {
            Fold::Store => count,
            Fold::Reduce(reduction) | Fold::ReduceLeft(reduction) => {
                let there = self.num_loose + count;
                let whole = there - there % dtype.size_bytes();
                let room = scratch.bytes(SCRATCH_BYTES);
                let target = &mut data[span.start..span.start + whole];
                match fold {
                    Fold::ReduceLeft(_) => {
                        combine_bytes_swapped(dtype, reduction, target, &mut room[..whole])?;
                    }
                    _ => combine_bytes(dtype, reduction, target, &[&room[..whole]])?,
                }
                self.num_loose = there - whole;
                self.loose[..self.num_loose].copy_from_slice(&room[whole..there]);
                whole
            }
        };
        self.settled += done;
        if let Some((span, _)) = self.spans.get_mut(self.index) {
            span.start += done;
            self.index += usize::from(span.start == span.end);
        }
        Ok(())
    }
}

pub(crate) fn lost(peer: usize, error: &io::Error) -> Halt {
    let detail = match error.kind() {
        io::ErrorKind::UnexpectedEof => "it was closed".to_owned(),
        _ => error.to_string(),
    };
    Halt::Lost { peer, detail }
}

/// Whether no flow before `index` of the same peer is under way.
fn is_first(
    index: usize,
    peer_of: impl Fn(usize) -> usize,
    is_done: impl Fn(usize) -> bool,
) -> bool {
    (0..index).all(|other| peer_of(other) != peer_of(index) || is_done(other))
}

/// Runs all flows to their end.
pub(crate) fn run(
    collective: &mut Collective<'_>,
    data: &mut [u8],
    mut outs: Vec<Outgoing>,
    mut ins: Vec<Incoming>,
) -> Result<(), Halt> {
    let mut idle = 0;
    loop {
        let mut moved = 0;
        for index in 0..outs.len() {
            let limit = outs[index].gate.limit(&outs, &ins);
            if outs[index].can_move(limit) && is_first_out(&outs, index) {
                let out = &mut outs[index];
                moved += out
                    .step(collective.links, data, limit)
                    .map_err(|error| lost(out.peer, &error))?;
            }
        }
        for index in 0..ins.len() {
            let limit = ins[index].gate.limit(&outs, &ins);
            if ins[index].can_move(limit) && is_first_in(&ins, index) {
                moved += ins[index].step(collective.links, data, collective.scratch, limit)?;
            }
        }
        if outs.iter().all(Outgoing::is_done) && ins.iter().all(Incoming::is_done) {
            collective.sent += outs.iter().map(|out| out.sent as u64).sum::<u64>();
            return Ok(());
        }
        if moved > 0 {
            idle = 0;
        } else if idle < collective.patience {
            idle += 1;
            std::thread::yield_now();
        } else {
            let (sends, receives) = waiting(&outs, &ins);
            collective.pause(&sends, &receives)?;
        }
    }
}

fn is_first_out(outs: &[Outgoing], index: usize) -> bool {
    is_first(index, |other| outs[other].peer, |other| outs[other].is_done())
}

fn is_first_in(ins: &[Incoming], index: usize) -> bool {
    is_first(index, |other| ins[other].peer, |other| ins[other].is_done())
}

/// The peers that could bring the flows on.
fn waiting(outs: &[Outgoing], ins: &[Incoming]) -> (Vec<usize>, Vec<usize>) {
    let sends = |index: &usize| {
        outs[*index].can_move(outs[*index].gate.limit(outs, ins)) && is_first_out(outs, *index)
    };
    let receives = |index: &usize| {
        ins[*index].can_move(ins[*index].gate.limit(outs, ins)) && is_first_in(ins, *index)
    };
    (
        (0..outs.len()).filter(sends).map(|index| outs[index].peer).collect(),
        (0..ins.len()).filter(receives).map(|index| ins[index].peer).collect(),
    )
}

/// Runs flows that have each a buffer of their own, and no gates, to their end.
pub(crate) fn run_apart(
    collective: &mut Collective<'_>,
    mut outs: Vec<(Outgoing, &[u8])>,
    mut ins: Vec<(Incoming, &mut [u8])>,
) -> Result<(), Halt> {
    let mut idle = 0;
    loop {
        let mut moved = 0;
        let ready_outs = unfinished(&outs, |(out, _)| (out.peer, out.is_done()));
        let ready_ins = unfinished(&ins, |(half, _)| (half.peer, half.is_done()));
        if ready_outs.is_empty() && ready_ins.is_empty() {
            collective.sent += outs.iter().map(|(out, _)| out.sent as u64).sum::<u64>();
            return Ok(());
        }
        for &index in &ready_outs {
            let (out, data) = &mut outs[index];
            let count = out.step(collective.links, data, usize::MAX);
            moved += count.map_err(|error| lost(out.peer, &error))?;
        }
        for &index in &ready_ins {
            let (half, data) = &mut ins[index];
            moved += half.step(collective.links, data, collective.scratch, usize::MAX)?;
        }
        if moved > 0 {
            idle = 0;
        } else if idle < collective.patience {
            idle += 1;
            std::thread::yield_now();
        } else {
            let sends: Vec<_> = ready_outs.iter().map(|&index| outs[index].0.peer).collect();
            let receives: Vec<_> = ready_ins.iter().map(|&index| ins[index].0.peer).collect();
            collective.pause(&sends, &receives)?;
        }
    }
}

/// The flows that may move: of each peer the first that is not done.
fn unfinished<T>(flows: &[T], state: impl Fn(&T) -> (usize, bool)) -> Vec<usize> {
    let mut seen: Vec<usize> = Vec::new();
    let mut ready = Vec::new();
    for (index, flow) in flows.iter().enumerate() {
        let (peer, is_done) = state(flow);
        if !is_done && !seen.contains(&peer) {
            seen.push(peer);
            ready.push(index);
        }
    }
    ready
}
