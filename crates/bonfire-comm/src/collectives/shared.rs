//! Collectives through the slots of shared memory.
//!
//! A collective is a number of turns, counted through all collectives of a group. In a turn, each
//! rank fills a slot of its own, may reduce what all slots hold for it, and collects from the
//! others' slots. It publishes each with a counter: turn t is filled when [`Counter::Filled`] is
//! above t, and so on. A slot serves every fourth turn, so it may be filled again when all ranks
//! have drained the turn four before. Ranks work ahead of each other as far as that allows.
//!
//! INVARIANT: all collectives of a group take the same number of turns on every rank: it follows
//! from the operation, the type and the length. Every slot carries the header of its collective,
//! and whoever waits for the slot compares it: also a rank whose numbers have parted from the
//! others' in a collective that did not wait for anybody.
//!
//! All-reduce, per turn and rank: give the others' segments (one copy), reduce the own segment of
//! everybody, give it, collect theirs (one copy). Of a message of N bytes a rank reads and
//! writes N of its own memory and 2N of the slots, which stay in the cache.
//!
//! Determinism: the segment of the rank at place s is reduced in the order s, s+1, ..., by that rank,
//! which has all contributions: 16-bit elements are added in `f32` and rounded once.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::direct::{Rounding, fold_all};
use super::{Collective, Halt, segments};
use crate::flow::Scratch;
use crate::header::Header;
use crate::links::{Links, Neighbours};
use crate::membership::LATCH_PERIOD;
use crate::reduce::{Reduction, combine_bytes};
use crate::shm::{Counter, SLOTS};
use crate::{Operation, ReduceOp};

/// Looks at a counter before other threads are given way, when every rank has a core; some 10 us.
const SPINS: u32 = 400;
/// Parts of slots begin at lines of their own.
const LINE: usize = 64;

/// Where a rank is in the turns of its group.
#[derive(Default)]
pub(crate) struct Turns {
    next: u64,
    /// The collective under way.
    current: Option<Header>,
    /// Memory of `direct`.
    pub(super) contributions: Scratch,
}

impl Turns {
    /// Shows the ranks of this machine in which collective this one is.
    pub(crate) fn enter(&mut self, links: &Links, header: Header) {
        self.current = Some(header);
        if let Some(near) = links.neighbours() {
            near.segment.post(near.place, &header.encode());
        }
    }

    /// Finds a rank of this machine that is in another operation than this one should have it in,
    /// or was in another before.
    pub(super) fn compare_boards(&self, links: &Links) -> Result<(), Halt> {
        let (Some(near), Some(own)) = (links.neighbours(), &self.current) else { return Ok(()) };
        for (place, &peer) in near.ranks.iter().enumerate().filter(|(p, _)| *p != near.place) {
            let posted = near.segment.posted(place);
            let Some(remote) = posted.and_then(|bytes| Header::decode(&bytes)) else { continue };
            if own.parting(&remote).is_some() {
                return Err(Halt::Mismatch { peer, local: *own, remote });
            }
        }
        Ok(())
    }
}

/// The turns of one collective.
struct Exchange<'c, 'a> {
    collective: &'c mut Collective<'a>,
    near: Arc<Neighbours>,
    header: Header,
    base: u64,
    /// Bytes put into slots.
    given: Cell<u64>,
}

impl<'c, 'a> Exchange<'c, 'a> {
    fn new(collective: &'c mut Collective<'a>, header: Header, near: Arc<Neighbours>) -> Self {
        let base = collective.turns.next;
        Self { collective, near, header, base, given: Cell::new(0) }
    }

    /// Ends a collective of `turns` turns.
    fn end(self, turns: u64) {
        self.collective.turns.next = self.base + turns;
        self.collective.sent += self.given.get();
    }

    fn size(&self) -> usize {
        self.near.ranks.len()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (place, size) = (self.near.place, self.near.ranks.len());
        (1..size).map(move |step| (place + step) % size)
    }

    /// Waits until the counter of a rank has reached `target`.
    fn wait(&self, place: usize, counter: Counter, target: u64) -> Result<(), Halt> {
        let segment = &self.near.segment;
        let word = segment.counter(place, counter);
        let is_there = || word.load(Ordering::Acquire) >= target;
        for _ in 0..if self.collective.patience > 0 { SPINS } else { 0 } {
            if is_there() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        for _ in 0..self.collective.patience {
            if is_there() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        loop {
            // ORDER: the end is looked at first, for it comes after the last turn of its rank.
            let closed = segment.is_closed(place);
            if is_there() {
                return Ok(());
            }
            if closed {
                let peer = self.near.ranks[place];
                return Err(Halt::Lost { peer, detail: "its memory was closed".into() });
            }
            let left = self.collective.check(|| vec![self.near.ranks[place]])?.min(LATCH_PERIOD);
            segment.sleep(self.near.place, left, || !is_there() && !segment.is_closed(place));
        }
    }

    /// Fills this rank's slot of turn `k`; `fill` returns how much of it.
    #[allow(unsafe_code, reason = "the slot is shared with other processes")]
    fn fill(&self, k: u64, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Halt> {
        let turn = self.base + k;
        for place in self.others() {
            self.wait(place, Counter::Drained, (turn + 1).saturating_sub(SLOTS as u64))?;
        }
        let segment = &self.near.segment;
        let all = 0..segment.layout().slot_bytes;
        // SAFETY: all ranks have drained the turn that used this slot, and none looks at it before
        // it is published below.
        let (head, slot) = unsafe {
            (
                segment.slot_head_mut(self.near.place, turn),
                segment.slot_mut(self.near.place, turn, all),
            )
        };
        *head = self.header.encode();
        self.given.set(self.given.get() + fill(slot) as u64);
        segment.advance(self.near.place, Counter::Filled, turn + 1);
        Ok(())
    }

    /// Waits until a rank has filled its slot of turn `k`.
    #[allow(unsafe_code, reason = "the slot is shared with other processes")]
    fn await_filled(&self, place: usize, k: u64) -> Result<(), Halt> {
        let turn = self.base + k;
        self.wait(place, Counter::Filled, turn + 1)?;
        if place == self.near.place {
            return Ok(());
        }
        // SAFETY: the slot is filled, and its rank waits for this one before it fills it again.
        let head = unsafe { self.near.segment.slot_head(place, turn) };
        let peer = self.near.ranks[place];
        match Header::decode(head) {
            Some(remote) if remote == self.header => Ok(()),
            Some(remote) => Err(Halt::Mismatch { peer, local: self.header, remote }),
            None => Err(Halt::Malformed { peer }),
        }
    }

    /// What a rank has filled in, or reduced, in turn `k`. Called after waiting for that.
    #[allow(unsafe_code, reason = "the slot is shared with other processes")]
    fn slot(&self, place: usize, k: u64, span: Range<usize>) -> &[u8] {
        // SAFETY: the caller has waited for the counter that publishes the span, and the slot's
        // rank waits for this one to drain the turn before it writes there again.
        unsafe { self.near.segment.slot(place, self.base + k, span) }
    }

    /// Publishes what this rank has reduced in turn `k`.
    #[allow(unsafe_code, reason = "the slot is shared with other processes")]
    fn give_reduced(&self, k: u64, at: usize, bytes: &[u8]) {
        let (turn, segment) = (self.base + k, &self.near.segment);
        // SAFETY: nobody reads this span of the slot before it is published below.
        let target = unsafe { segment.slot_mut(self.near.place, turn, at..at + bytes.len()) };
        target.copy_from_slice(bytes);
        self.given.set(self.given.get() + bytes.len() as u64);
        segment.advance(self.near.place, Counter::Reduced, turn + 1);
    }

    fn drained(&self, k: u64) {
        self.near.segment.advance(self.near.place, Counter::Drained, self.base + k + 1);
    }
}

/// How a buffer with a segment for each rank is cut into turns.
struct Cut {
    segments: Vec<Range<usize>>,
    /// Bytes of a segment that go in one turn.
    part: usize,
    turns: u64,
}

impl Cut {
    fn new(segments: Vec<Range<usize>>, slot_bytes: usize) -> Self {
        let part = slot_bytes / segments.len() / LINE * LINE;
        let longest = segments.iter().map(Range::len).max().unwrap_or(0);
        Self { segments, part, turns: longest.div_ceil(part).max(1) as u64 }
    }

    /// What goes of a segment in turn `k`.
    fn span(&self, place: usize, k: u64) -> Range<usize> {
        let segment = &self.segments[place];
        let start = (segment.start + k as usize * self.part).min(segment.end);
        start..(start + self.part).min(segment.end)
    }

    /// Puts the parts of `places` into a slot; returns their bytes.
    fn deal(
        &self,
        places: impl Iterator<Item = usize>,
        k: u64,
        data: &[u8],
        slot: &mut [u8],
    ) -> usize {
        let mut bytes = 0;
        for place in places {
            slot[self.place(place, k)].copy_from_slice(&data[self.span(place, k)]);
            bytes += self.span(place, k).len();
        }
        bytes
    }

    /// Where it is in a slot that holds a part for each rank.
    fn place(&self, place: usize, k: u64) -> Range<usize> {
        let start = place * self.part;
        start..start + self.span(place, k).len()
    }
}

impl Collective<'_> {
    /// Carries an operation out between ranks that all share memory.
    pub(super) fn run_shared(
        &mut self,
        operation: Operation,
        header: Header,
        data: &mut [u8],
    ) -> Result<(), Halt> {
        let near = self.near()?;
        let cut = segments(data.len(), header.dtype, self.size);
        match operation {
            Operation::AllReduce(op) if data.len() <= self.direct_bytes => {
                self.shared_all_reduce_direct(header, data, op)
            }
            Operation::AllReduce(op) => {
                let last = Reduction::last(op, self.size);
                self.shared_reduce(near, header, data, cut, last, Collect::All)
            }
            Operation::Reduce { root, op } => {
                let last = Reduction::last(op, self.size);
                self.shared_reduce(near, header, data, cut, last, Collect::At(root))
            }
            Operation::ReduceScatter(op) => {
                let last = Reduction::last(op, self.size);
                self.shared_reduce(near, header, data, cut, last, Collect::Nowhere)
            }
            Operation::AllGather => self.shared_all_gather(near, header, data, cut),
            Operation::AllToAll => self.shared_all_to_all(header, data),
            Operation::Broadcast { root } if root == self.rank => self.shared_give(header, data),
            Operation::Broadcast { root } => self.shared_take(header, data, root),
            Operation::Gather { root } if root == self.rank => self.shared_gather(header, data),
            Operation::Gather { .. } => self.shared_give(header, data),
            Operation::Scatter { root } if root == self.rank => self.shared_deal(header, data),
            Operation::Scatter { root } => self.shared_take_part(header, data, root),
            Operation::Barrier => self.shared_barrier(header),
            Operation::Send { to } => self.send(header, data, to),
            Operation::Recv { from } => self.recv(header, data, from),
        }
    }

    pub(super) fn near(&self) -> Result<Arc<Neighbours>, Halt> {
        self.links.neighbours().cloned().ok_or_else(|| {
            let detail = "no memory is shared".to_owned();
            Halt::Failed(crate::CommError::Internal { detail })
        })
    }

    fn slot_bytes(near: &Neighbours) -> usize {
        near.segment.layout().slot_bytes
    }

    /// One turn in which everybody gets everything.
    fn shared_all_reduce_direct(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let exchange = Exchange::new(self, header, self.near()?);
        exchange.fill(0, |slot| put(slot, data))?;
        for place in exchange.others() {
            exchange.await_filled(place, 0)?;
        }
        let order: Vec<usize> = (0..exchange.size()).collect();
        let len = data.len();
        fold_all(header.dtype, op, data, &order, Rounding::Once, |place| {
            exchange.slot(place, 0, 0..len)
        })?;
        exchange.drained(0);
        exchange.end(1);
        Ok(())
    }

    /// Reduces each segment at its rank, and hands the results to whoever collects them.
    pub(super) fn shared_reduce(
        &mut self,
        near: Arc<Neighbours>,
        header: Header,
        data: &mut [u8],
        segments: Vec<Range<usize>>,
        reduction: Reduction,
        collect: Collect,
    ) -> Result<(), Halt> {
        let cut = Cut::new(segments, Self::slot_bytes(&near));
        let exchange = Exchange::new(self, header, near);
        let own = exchange.near.place;
        let collects = collect.is_at(exchange.near.ranks[own]);
        for k in 0..cut.turns + 2 {
            if k < cut.turns {
                exchange.fill(k, |slot| cut.deal(exchange.others(), k, data, slot))?;
            }
            if let Some(k) = k.checked_sub(1).filter(|k| *k < cut.turns) {
                let target = &mut data[cut.span(own, k)];
                exchange.others().try_for_each(|place| exchange.await_filled(place, k))?;
                let slot = |place| exchange.slot(place, k, cut.place(own, k));
                let sources: Vec<&[u8]> = exchange.others().map(slot).collect();
                combine_bytes(header.dtype, reduction, target, &sources)?;
                if collect != Collect::Nowhere {
                    exchange.give_reduced(k, cut.place(own, k).start, target);
                }
                if !collects {
                    exchange.drained(k);
                }
            }
            if let Some(k) = k.checked_sub(2).filter(|_| collects) {
                for place in exchange.others() {
                    exchange.wait(place, Counter::Reduced, exchange.base + k + 1)?;
                    let source = exchange.slot(place, k, cut.place(place, k));
                    data[cut.span(place, k)].copy_from_slice(source);
                }
                exchange.drained(k);
            }
        }
        exchange.end(cut.turns);
        Ok(())
    }

    /// Gives the own segment, and collects the others'.
    pub(super) fn shared_all_gather(
        &mut self,
        near: Arc<Neighbours>,
        header: Header,
        data: &mut [u8],
        segments: Vec<Range<usize>>,
    ) -> Result<(), Halt> {
        let cut =
            Cut { part: Self::slot_bytes(&near), ..Cut::new(segments, Self::slot_bytes(&near)) };
        let longest = cut.segments.iter().map(Range::len).max().unwrap_or(0);
        let cut = Cut { turns: longest.div_ceil(cut.part).max(1) as u64, ..cut };
        let exchange = Exchange::new(self, header, near);
        let own = exchange.near.place;
        for k in 0..=cut.turns {
            if k < cut.turns {
                let span = cut.span(own, k);
                exchange.fill(k, |slot| put(slot, &data[span]))?;
            }
            let Some(k) = k.checked_sub(1) else { continue };
            for place in exchange.others() {
                exchange.await_filled(place, k)?;
                let span = cut.span(place, k);
                let source = exchange.slot(place, k, 0..span.len());
                data[span].copy_from_slice(source);
            }
            exchange.drained(k);
        }
        exchange.end(cut.turns);
        Ok(())
    }

    fn shared_all_to_all(&mut self, header: Header, data: &mut [u8]) -> Result<(), Halt> {
        let near = self.near()?;
        let cut = Cut::new(segments(data.len(), header.dtype, self.size), Self::slot_bytes(&near));
        let exchange = Exchange::new(self, header, near);
        let own = exchange.near.place;
        for k in 0..cut.turns {
            exchange.fill(k, |slot| cut.deal(exchange.others(), k, data, slot))?;
            for place in exchange.others() {
                exchange.await_filled(place, k)?;
                let source = exchange.slot(place, k, cut.place(own, k));
                data[cut.span(place, k)].copy_from_slice(source);
            }
            exchange.drained(k);
        }
        exchange.end(cut.turns);
        Ok(())
    }

    /// Fills slots with all of `data`, for others to collect.
    pub(super) fn shared_give(&mut self, header: Header, data: &[u8]) -> Result<(), Halt> {
        let near = self.near()?;
        let part = Self::slot_bytes(&near);
        let turns = data.len().div_ceil(part).max(1) as u64;
        let exchange = Exchange::new(self, header, near);
        for k in 0..turns {
            let span = chunk(data.len(), part, k);
            exchange.fill(k, |slot| put(slot, &data[span]))?;
            exchange.drained(k);
        }
        exchange.end(turns);
        Ok(())
    }

    /// Collects all that one rank gives.
    pub(super) fn shared_take(
        &mut self,
        header: Header,
        data: &mut [u8],
        from: usize,
    ) -> Result<(), Halt> {
        let near = self.near()?;
        let part = Self::slot_bytes(&near);
        let turns = data.len().div_ceil(part).max(1) as u64;
        let Some(source) = near.place_of(from) else { return Ok(()) };
        let exchange = Exchange::new(self, header, near);
        for k in 0..turns {
            exchange.fill(k, |_| 0)?;
            exchange.await_filled(source, k)?;
            let span = chunk(data.len(), part, k);
            let slot = exchange.slot(source, k, 0..span.len());
            data[span].copy_from_slice(slot);
            exchange.drained(k);
        }
        exchange.end(turns);
        Ok(())
    }

    /// Collects from each rank its segment.
    fn shared_gather(&mut self, header: Header, data: &mut [u8]) -> Result<(), Halt> {
        let near = self.near()?;
        let part = Self::slot_bytes(&near);
        let segments = segments(data.len(), header.dtype, self.size);
        let turns = segments[0].len().div_ceil(part).max(1) as u64;
        let exchange = Exchange::new(self, header, near);
        for k in 0..turns {
            exchange.fill(k, |_| 0)?;
            let chunk = chunk(segments[0].len(), part, k);
            for place in exchange.others() {
                exchange.await_filled(place, k)?;
                let start = segments[place].start;
                let target = &mut data[start + chunk.start..start + chunk.end];
                target.copy_from_slice(exchange.slot(place, k, 0..chunk.len()));
            }
            exchange.drained(k);
        }
        exchange.end(turns);
        Ok(())
    }

    /// Gives each rank its segment.
    fn shared_deal(&mut self, header: Header, data: &[u8]) -> Result<(), Halt> {
        let near = self.near()?;
        let cut = Cut::new(segments(data.len(), header.dtype, self.size), Self::slot_bytes(&near));
        let exchange = Exchange::new(self, header, near);
        for k in 0..cut.turns {
            exchange.fill(k, |slot| cut.deal(exchange.others(), k, data, slot))?;
            exchange.drained(k);
        }
        exchange.end(cut.turns);
        Ok(())
    }

    /// Collects the own segment of what one rank deals out.
    fn shared_take_part(
        &mut self,
        header: Header,
        data: &mut [u8],
        from: usize,
    ) -> Result<(), Halt> {
        let near = self.near()?;
        let (own, size, len) = (near.place, self.size, data.len());
        let all = (0..size).map(|place| place * len..(place + 1) * len).collect();
        let cut = Cut::new(all, Self::slot_bytes(&near));
        let Some(source) = near.place_of(from) else { return Ok(()) };
        let exchange = Exchange::new(self, header, near);
        for k in 0..cut.turns {
            exchange.fill(k, |_| 0)?;
            exchange.await_filled(source, k)?;
            let span = cut.span(own, k);
            let slot = exchange.slot(source, k, cut.place(own, k));
            data[span.start - own * len..span.end - own * len].copy_from_slice(slot);
            exchange.drained(k);
        }
        exchange.end(cut.turns);
        Ok(())
    }

    fn shared_barrier(&mut self, header: Header) -> Result<(), Halt> {
        let exchange = Exchange::new(self, header, self.near()?);
        exchange.fill(0, |_| 0)?;
        for place in exchange.others() {
            exchange.await_filled(place, 0)?;
        }
        exchange.drained(0);
        exchange.end(1);
        Ok(())
    }

    /// The root's half of a scatter from memory that is read only.
    pub(super) fn scatter_from_here(
        &mut self,
        algorithm: crate::Algorithm,
        header: Header,
        data: &[u8],
    ) -> Result<(), Halt> {
        match self.way(algorithm) {
            super::Way::Shared => self.shared_deal(header, data),
            _ => self.deal(header, data),
        }
    }

    /// The half of a gather of a rank that is not the root.
    pub(super) fn give_part(
        &mut self,
        algorithm: crate::Algorithm,
        header: Header,
        data: &[u8],
        root: usize,
    ) -> Result<(), Halt> {
        match self.way(algorithm) {
            super::Way::Shared => self.shared_give(header, data),
            _ => self.send(header, data, root),
        }
    }
}

/// Who gets all reduced segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Collect {
    All,
    At(usize),
    Nowhere,
}

impl Collect {
    fn is_at(self, rank: usize) -> bool {
        match self {
            Self::All => true,
            Self::At(root) => root == rank,
            Self::Nowhere => false,
        }
    }
}

/// Puts bytes to the beginning of a slot; returns how many.
fn put(slot: &mut [u8], bytes: &[u8]) -> usize {
    slot[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

/// The `k`-th part of a buffer.
fn chunk(len: usize, part: usize, k: u64) -> Range<usize> {
    let start = (k as usize * part).min(len);
    start..(start + part).min(len)
}
