//! The collectives, written once for all kinds of links.
//!
//! A collective is a stream of bytes to one peer and a stream of bytes from another, both taken
//! from and put to spans of the same buffer. A byte may be sent when it was the rank's own
//! from the start, or as soon as it was received and reduced:
//! `sendable = own + received`. This one rule pipelines every algorithm below at the granularity
//! of whatever the links accept, in a single loop that never blocks on one direction while the
//! other could move.
//!
//! All-reduce with W ranks is 2(W-1) steps: step t sends segment `r - t` and receives segment
//! `r - t - 1` (modulo W). What is received in steps below W-1 is reduced, the rest is final and
//! put straight into its place. INVARIANT: a final byte cannot arrive before this rank has sent
//! its own contribution to it, because the byte depends on that; so nothing unsent is overwritten.
//!
//! Determinism: segment s is always reduced in the order s, s+1, ..., and everybody gets the
//! bytes of the rank that finished it.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::time::Instant;

use crate::header::{HEADER_BYTES, Header};
use crate::links::Links;
use crate::membership::{LATCH_PERIOD, Membership};
use crate::reduce::{divide_bytes, reduce_bytes};
use crate::{CommError, DType, ReduceOp, Result};

/// Bytes that are received before they are reduced. They are read again at once, beside the same
/// span of the buffer, so both should stay in the L2 cache.
///
/// Tuned with `examples/allreduce_bw.rs`: 2 processes, TCP over loopback, 25 MiB, on 2 cores of an
/// AMD EPYC with 512 KiB of L2 each, while another build ran, so that differences below 1 s mean
/// little. System time of the same work by (send, scratch) in KiB, one run each, (64, 64) two:
/// (256, 256) 7.0 s, (64, 256) 6.3 s, (64, 64) 5.7 to 6.2 s, (32, 32) 7.7 s, (128, 64) 4.9 s,
/// (256, 64) 4.7 s.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Most bytes given to one send, so that the two directions take turns; see [`SCRATCH_BYTES`].
const SEND_BYTES: usize = 256 * 1024;
/// Tries, each after giving way to other threads, before a transfer that does not move sleeps in the
/// kernel; some 30 us. To be woken costs as much: an all-reduce of 8 bytes between 2 processes took
/// 55 us on average without these tries and 10 to 18 us with them.
const IDLE_TRIES: usize = 60;
/// All-reduces up to this size go to everybody at once instead of around the ring.
pub(crate) const DIRECT_BYTES: usize = 4096;

/// Why a transfer stopped.
pub(crate) enum Halt {
    /// The session has failed.
    Failed(CommError),
    /// The deadline passed while waiting for these peers.
    Deadline,
    /// The connection to `peer` broke.
    Lost { peer: usize, detail: String },
    /// The peer's header is another one.
    Mismatch { peer: usize, remote: Header },
    /// The peer's bytes are no header.
    Malformed { peer: usize },
}

impl From<CommError> for Halt {
    fn from(error: CommError) -> Self {
        Self::Failed(error)
    }
}

/// What the algorithms need of a group.
pub(crate) struct Ring<'a> {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) links: &'a mut dyn Links,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) membership: &'a dyn Membership,
    pub(crate) deadline: Instant,
    /// Payload bytes sent.
    pub(crate) sent: u64,
}

/// Memory for received bytes before they are reduced, aligned for every element type.
#[derive(Default)]
pub(crate) struct Scratch {
    words: Vec<u64>,
}

impl Scratch {
    fn bytes(&mut self, wanted: usize) -> &mut [u8] {
        let words = wanted.min(SCRATCH_BYTES).div_ceil(8);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        bytemuck::cast_slice_mut(&mut self.words)
    }
}

/// What is done with received bytes.
#[derive(Clone, Copy, PartialEq)]
enum Fold {
    /// They are put into place.
    Store,
    /// They are reduced into place.
    Reduce(ReduceOp),
    /// They are reduced into place, which is the last contribution.
    Finish(ReduceOp),
}

/// The outgoing half of a transfer.
struct Outgoing {
    peer: usize,
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    spans: Vec<Range<usize>>,
    index: usize,
    sent: usize,
    total: usize,
}

impl Outgoing {
    /// Sends all of a buffer.
    fn whole(peer: usize, header: Header, len: usize) -> Self {
        Self::new(peer, header, std::iter::once(0..len).collect())
    }

    fn new(peer: usize, header: Header, mut spans: Vec<Range<usize>>) -> Self {
        spans.retain(|span| !span.is_empty());
        let total = spans.iter().map(Range::len).sum();
        Self { peer, header: header.encode(), header_sent: 0, spans, index: 0, sent: 0, total }
    }

    fn is_done(&self) -> bool {
        self.header_sent == HEADER_BYTES && self.sent == self.total
    }

    fn can_send(&self, sendable: usize) -> bool {
        self.header_sent < HEADER_BYTES || self.sent < sendable.min(self.total)
    }

    /// Sends what can be sent without waiting; returns the number of bytes.
    fn step(&mut self, links: &mut dyn Links, data: &[u8], sendable: usize) -> io::Result<usize> {
        let header = &self.header[self.header_sent..];
        let span = self.spans.get(self.index).cloned().unwrap_or(0..0);
        let len = span.len().min(sendable.saturating_sub(self.sent)).min(SEND_BYTES);
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

/// The incoming half of a transfer.
struct Incoming {
    peer: usize,
    expected: Header,
    header: [u8; HEADER_BYTES],
    header_read: usize,
    spans: Vec<(Range<usize>, Fold)>,
    index: usize,
    /// Bytes in place, reduced where they had to be.
    settled: usize,
    total: usize,
    /// Bytes in the scratch memory, less than an element.
    loose: usize,
    world_size: usize,
}

impl Incoming {
    fn new(
        peer: usize,
        expected: Header,
        mut spans: Vec<(Range<usize>, Fold)>,
        world_size: usize,
    ) -> Self {
        spans.retain(|(span, _)| !span.is_empty());
        let total = spans.iter().map(|(span, _)| span.len()).sum();
        let header = [0; HEADER_BYTES];
        Self {
            peer,
            expected,
            header,
            header_read: 0,
            spans,
            index: 0,
            settled: 0,
            total,
            loose: 0,
            world_size,
        }
    }

    fn is_done(&self) -> bool {
        self.header_read == HEADER_BYTES && self.settled == self.total
    }

    /// Receives what is there without waiting; returns the number of bytes.
    fn step(
        &mut self,
        links: &mut dyn Links,
        data: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<usize, Halt> {
        let (span, fold) = self.spans.get(self.index).cloned().unwrap_or((0..0, Fold::Store));
        let header = &mut self.header[self.header_read..];
        let header_len = header.len();
        let payload = match fold {
            Fold::Store => &mut data[span.clone()],
            Fold::Reduce(_) | Fold::Finish(_) => {
                let room = scratch.bytes(span.len());
                let end = room.len().min(span.len());
                &mut room[self.loose..end]
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
            Some(remote) => Err(Halt::Mismatch { peer: self.peer, remote }),
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
            Fold::Reduce(op) | Fold::Finish(op) => {
                let there = self.loose + count;
                let whole = there - there % dtype.size_bytes();
                let room = scratch.bytes(span.len());
                let target = &mut data[span.start..span.start + whole];
                reduce_bytes(dtype, op, target, &room[..whole])?;
                if fold == Fold::Finish(ReduceOp::Mean) {
                    divide_bytes(dtype, target, self.world_size)?;
                }
                room.copy_within(whole..there, 0);
                self.loose = there - whole;
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

fn lost(peer: usize, error: &io::Error) -> Halt {
    let detail = match error.kind() {
        io::ErrorKind::UnexpectedEof => "it was closed".to_owned(),
        _ => error.to_string(),
    };
    Halt::Lost { peer, detail }
}

impl Ring<'_> {
    /// Reduces `data` over all ranks.
    pub(crate) fn all_reduce(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        if data.len() <= DIRECT_BYTES {
            return self.all_reduce_direct(header, data, op);
        }
        let segments = segments(data.len(), header.dtype, self.size);
        let steps = 2 * (self.size - 1);
        let sends = (0..steps).map(|t| segments[self.back(t)].clone()).collect();
        let receives = (0..steps)
            .map(|t| (segments[self.back(t + 1)].clone(), self.fold_of_step(t, op)))
            .collect();
        self.around(header, data, sends, receives, segments[self.rank].len())
    }

    fn fold_of_step(&self, step: usize, op: ReduceOp) -> Fold {
        match (step + 2).cmp(&self.size) {
            std::cmp::Ordering::Less => Fold::Reduce(op),
            std::cmp::Ordering::Equal => Fold::Finish(op),
            std::cmp::Ordering::Greater => Fold::Store,
        }
    }

    /// Reduces small data: everybody gets all contributions and reduces them in the order of the
    /// ranks, which gives the same bits everywhere after one latency instead of 2(W-1).
    ///
    /// No deadlock: what a rank sends here fits into the buffers of an idle link, and a link that
    /// is not idle holds data of earlier operations, which its reader takes before it comes here.
    fn all_reduce_direct(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let mut copy = [0u64; DIRECT_BYTES / 8];
        let own = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut copy)[..data.len()];
        own.copy_from_slice(data);
        let mut sends: Vec<Outgoing> =
            self.peers().map(|peer| Outgoing::whole(peer, header, own.len())).collect();
        for out in &mut sends {
            self.transfer(Some(out), None, &mut data[..], own.len())?;
        }
        for rank in 0..self.size {
            let last = if rank + 1 == self.size { Fold::Finish(op) } else { Fold::Reduce(op) };
            let fold = if rank == 0 { Fold::Store } else { last };
            if rank != self.rank {
                let spans = vec![(0..own.len(), fold)];
                let mut incoming = Incoming::new(rank, header, spans, self.size);
                self.transfer(None, Some(&mut incoming), data, 0)?;
            } else if rank == 0 {
                data.copy_from_slice(own);
            } else {
                reduce_bytes(header.dtype, op, data, own)?;
                if fold == Fold::Finish(ReduceOp::Mean) {
                    divide_bytes(header.dtype, data, self.size)?;
                }
            }
        }
        Ok(())
    }

    /// Leaves in segment r of rank r the reduction of everybody's segment r.
    pub(crate) fn reduce_scatter(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let segments = segments(data.len(), header.dtype, self.size);
        let steps = self.size - 1;
        let sends = (0..steps).map(|t| segments[self.back(t + 1)].clone()).collect();
        let receives = (0..steps)
            .map(|t| (segments[self.back(t + 2)].clone(), self.fold_of_step(t, op)))
            .collect();
        self.around(header, data, sends, receives, segments[self.back(1)].len())
    }

    /// Fills every segment with that of its rank.
    pub(crate) fn all_gather(&mut self, header: Header, data: &mut [u8]) -> Result<(), Halt> {
        let segments = segments(data.len(), header.dtype, self.size);
        let steps = self.size - 1;
        let sends = (0..steps).map(|t| segments[self.back(t)].clone()).collect();
        let receives =
            (0..steps).map(|t| (segments[self.back(t + 1)].clone(), Fold::Store)).collect();
        self.around(header, data, sends, receives, segments[self.rank].len())
    }

    /// Passes the root's data along the chain root, root + 1, ...
    pub(crate) fn broadcast(
        &mut self,
        header: Header,
        data: &mut [u8],
        root: usize,
    ) -> Result<(), Halt> {
        let all = 0..data.len();
        let own = if self.rank == root { data.len() } else { 0 };
        let mut out =
            (self.next() != root).then(|| Outgoing::new(self.next(), header, vec![all.clone()]));
        let mut incoming = (self.rank != root)
            .then(|| Incoming::new(self.previous(), header, vec![(all, Fold::Store)], self.size));
        self.transfer(out.as_mut(), incoming.as_mut(), data, own)
    }

    /// Waits for everybody: in round k, rank r hears of the 2^k ranks before it.
    pub(crate) fn barrier(&mut self, header: Header) -> Result<(), Halt> {
        let mut distance = 1;
        let mut round = 0;
        while distance < self.size {
            let header = header.with_round(round);
            let to = (self.rank + distance) % self.size;
            let from = (self.rank + self.size - distance) % self.size;
            let mut out = Outgoing::new(to, header, Vec::new());
            let mut incoming = Incoming::new(from, header, Vec::new(), self.size);
            self.transfer(Some(&mut out), Some(&mut incoming), &mut [], 0)?;
            distance *= 2;
            round += 1;
        }
        Ok(())
    }

    /// Sends `data` to `peer`.
    pub(crate) fn send(&mut self, header: Header, data: &[u8], peer: usize) -> Result<(), Halt> {
        let mut out = Outgoing::whole(peer, header, data.len());
        while !out.is_done() {
            let count =
                out.step(self.links, data, data.len()).map_err(|error| lost(out.peer, &error))?;
            if count == 0 {
                self.pause(Some(peer), None)?;
            }
        }
        self.sent += out.sent as u64;
        Ok(())
    }

    /// Receives `data` from `peer`.
    pub(crate) fn recv(
        &mut self,
        header: Header,
        data: &mut [u8],
        peer: usize,
    ) -> Result<(), Halt> {
        let spans = vec![(0..data.len(), Fold::Store)];
        let mut incoming = Incoming::new(peer, header, spans, self.size);
        self.transfer(None, Some(&mut incoming), data, 0)
    }

    /// Sends to the next rank and receives from the previous one.
    fn around(
        &mut self,
        header: Header,
        data: &mut [u8],
        sends: Vec<Range<usize>>,
        receives: Vec<(Range<usize>, Fold)>,
        own: usize,
    ) -> Result<(), Halt> {
        let mut out = Outgoing::new(self.next(), header, sends);
        let mut incoming = Incoming::new(self.previous(), header, receives, self.size);
        self.transfer(Some(&mut out), Some(&mut incoming), data, own)
    }

    /// Runs both halves to their end. `own` bytes of the outgoing stream can go at once.
    fn transfer(
        &mut self,
        mut out: Option<&mut Outgoing>,
        mut incoming: Option<&mut Incoming>,
        data: &mut [u8],
        own: usize,
    ) -> Result<(), Halt> {
        let mut idle = 0;
        loop {
            let mut moved = 0;
            let sendable = own + incoming.as_ref().map_or(0, |half| half.settled);
            if let Some(half) = out.as_mut().filter(|half| half.can_send(sendable)) {
                moved += half
                    .step(self.links, data, sendable)
                    .map_err(|error| lost(half.peer, &error))?;
            }
            if let Some(half) = incoming.as_mut().filter(|half| !half.is_done()) {
                moved += half.step(self.links, data, self.scratch)?;
            }
            let sendable = own + incoming.as_ref().map_or(0, |half| half.settled);
            let sending = out.as_ref().filter(|half| !half.is_done());
            let receiving = incoming.as_ref().filter(|half| !half.is_done());
            if sending.is_none() && receiving.is_none() {
                self.sent += out.map_or(0, |half| half.sent as u64);
                return Ok(());
            }
            if moved > 0 {
                idle = 0;
            } else if idle < IDLE_TRIES {
                idle += 1;
                std::thread::yield_now();
            } else {
                let to = sending.filter(|half| half.can_send(sendable)).map(|half| half.peer);
                let from = receiving.map(|half| half.peer);
                self.pause(to, from)?;
            }
        }
    }

    /// Sleeps until a link may be ready, the session has failed, or the deadline has passed.
    fn pause(&mut self, send: Option<usize>, recv: Option<usize>) -> Result<(), Halt> {
        if let Some(failure) = self.membership.failure() {
            return Err(Halt::Failed(failure));
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Halt::Deadline);
        }
        let peer = recv.or(send).unwrap_or(self.rank);
        self.links.wait(send, recv, left.min(LATCH_PERIOD)).map_err(|error| lost(peer, &error))
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank, self.size);
        // Starting behind this rank spreads the load over the receivers.
        (1..size).map(move |distance| (rank + distance) % size)
    }

    fn next(&self) -> usize {
        (self.rank + 1) % self.size
    }

    fn previous(&self) -> usize {
        self.back(1)
    }

    /// The rank `steps` before this one.
    fn back(&self, steps: usize) -> usize {
        (self.rank + 2 * self.size - steps % self.size) % self.size
    }
}

/// Cuts `bytes` into one span of whole elements per rank, as equal as possible.
fn segments(bytes: usize, dtype: DType, size: usize) -> Vec<Range<usize>> {
    let width = dtype.size_bytes();
    let elements = bytes / width;
    // Wide arithmetic is not needed: base and rest stay below `elements`.
    let (base, rest) = (elements / size, elements % size);
    let start = |rank: usize| (base * rank + rest.min(rank)) * width;
    (0..size).map(|rank| start(rank)..start(rank + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_everything_once() {
        for size in 1..6 {
            for elements in [0usize, 1, 2, 7, 64, 101] {
                let spans = segments(elements * 4, DType::F32, size);
                assert_eq!(spans.len(), size);
                assert_eq!((spans[0].start, spans[size - 1].end), (0, elements * 4));
                assert!(spans.windows(2).all(|pair| pair[0].end == pair[1].start));
                let lens: Vec<usize> = spans.iter().map(Range::len).collect();
                assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 4);
            }
        }
    }
}
