//! A segment of shared memory and its words.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use memmap2::{MmapMut, MmapRaw};

use super::futex;
use super::layout::{LINE, Layout, SLOT_HEAD, SLOTS};
use crate::header::HEADER_BYTES;

/// First word of every segment.
const MAGIC: u64 = 0x4246_5348_4d30_3031;
/// Place of the number that the other ranks were given to know the segment by.
const COOKIE_AT: usize = 8;

/// Counts the turns that a rank has come through; see `collectives::shared`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    /// Its slot holds what it gives.
    Filled,
    /// Its slot holds what it has reduced.
    Reduced,
    /// It has taken what it needs of the others' slots.
    Drained,
}

/// A mapping that all local ranks of a group see.
pub(crate) struct Segment {
    map: MmapRaw,
    layout: Layout,
    /// Keeps the memory reachable for the ranks that have not mapped it yet.
    _file: Option<File>,
}

impl Segment {
    /// Makes a segment for the threads of this process.
    pub(crate) fn anonymous(ranks: usize) -> io::Result<Arc<Self>> {
        let layout = Layout::new(ranks);
        let map = MmapRaw::from(MmapMut::map_anon(layout.total())?);
        Ok(Arc::new(Self { map, layout, _file: None }))
    }

    /// Makes a segment that other processes can open at the returned path.
    #[cfg(target_os = "linux")]
    pub(crate) fn create(ranks: usize, cookie: u64) -> io::Result<(Arc<Self>, String)> {
        use std::os::fd::{AsRawFd, FromRawFd};
        let layout = Layout::new(ranks);
        // SAFETY: the name is a string that ends with a zero.
        let fd = unsafe {
            libc::memfd_create(c"bonfire".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and belongs to nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(layout.total() as u64)?;
        // A peer that cut the file would kill the others by SIGBUS.
        // SAFETY: a call with an integer argument on a descriptor that is open.
        let sealed =
            unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
        if sealed < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let map = MmapRaw::map_raw(&file)?;
        let segment = Self { map, layout, _file: Some(file) };
        segment.word(COOKIE_AT).store(cookie, Ordering::Relaxed);
        segment.word(0).store(MAGIC, Ordering::Release);
        Ok((Arc::new(segment), path))
    }

    /// Maps the segment that another process made for as many ranks.
    pub(crate) fn open(path: &str, ranks: usize, cookie: u64) -> io::Result<Arc<Self>> {
        let layout = Layout::new(ranks);
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != layout.total() as u64 {
            return Err(io::Error::other("it has the size of something else"));
        }
        let segment = Self { map: MmapRaw::map_raw(&file)?, layout, _file: None };
        let found = (
            segment.word(0).load(Ordering::Acquire),
            segment.word(COOKIE_AT).load(Ordering::Relaxed),
        );
        if found != (MAGIC, cookie) {
            return Err(io::Error::other("it is not the memory of this group"));
        }
        Ok(Arc::new(segment))
    }

    /// Says that a rank has mapped the segment.
    pub(crate) fn arrive(&self, rank: usize) {
        self.arrived(rank).store(1, Ordering::Release);
        (0..self.layout.ranks).for_each(|other| self.notify(other));
    }

    /// Sleeps until all ranks have mapped the segment, at most for `timeout`; may return early
    /// without a reason. Returns those that have not.
    pub(crate) fn wait_for_arrivals(&self, own: usize, timeout: Duration) -> Vec<usize> {
        let is_missing = |rank: &usize| self.arrived(*rank).load(Ordering::Acquire) == 0;
        let missing = || (0..self.layout.ranks).filter(is_missing);
        if missing().next().is_some() {
            self.sleep(own, timeout, || missing().next().is_some());
        }
        missing().collect()
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.map.len(), "offset {offset} is outside of the segment");
        // SAFETY: the offset is inside of the mapping.
        unsafe { self.map.as_mut_ptr().add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert_eq!(offset % 8, 0);
        // SAFETY: aligned (the mapping begins at a page), inside of the mapping for as long as
        // `self` lives, and accessed as an atomic word by everybody.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        debug_assert_eq!(offset % 4, 0);
        // SAFETY: as `word`.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }

    fn bell(&self, rank: usize) -> &AtomicU32 {
        self.half(self.layout.rank_at(rank))
    }

    fn sleepers(&self, rank: usize) -> &AtomicU32 {
        self.half(self.layout.rank_at(rank) + 4)
    }

    fn arrived(&self, rank: usize) -> &AtomicU64 {
        self.word(self.layout.rank_at(rank) + 8)
    }

    fn closed(&self, rank: usize) -> &AtomicU64 {
        self.word(self.layout.rank_at(rank) + LINE)
    }

    /// Says that a rank will neither read nor write any more.
    pub(crate) fn close(&self, rank: usize) {
        self.closed(rank).store(1, Ordering::Release);
        (0..self.layout.ranks).for_each(|other| self.notify(other));
    }

    pub(crate) fn is_closed(&self, rank: usize) -> bool {
        self.closed(rank).load(Ordering::Acquire) != 0
    }

    pub(crate) fn counter(&self, rank: usize, counter: Counter) -> &AtomicU64 {
        self.word(self.layout.rank_at(rank) + LINE * (3 + counter as usize))
    }

    /// Publishes a counter of a rank and wakes the ranks that sleep.
    pub(crate) fn advance(&self, rank: usize, counter: Counter, value: u64) {
        self.counter(rank, counter).store(value, Ordering::Release);
        self.notify_all(rank);
    }

    /// Wakes the other ranks that sleep.
    pub(crate) fn notify_all(&self, own: usize) {
        fence(Ordering::SeqCst);
        for rank in (0..self.layout.ranks).filter(|rank| *rank != own) {
            self.ring(rank);
        }
    }

    /// Wakes a rank if it sleeps.
    ///
    /// ORDER: the fence puts the caller's news before its look at the sleeper, as `sleep` puts the
    /// sleeper before its look at the news: one of the two sees the other.
    pub(crate) fn notify(&self, rank: usize) {
        fence(Ordering::SeqCst);
        self.ring(rank);
    }

    fn ring(&self, rank: usize) {
        if self.sleepers(rank).load(Ordering::Relaxed) != 0 {
            self.bell(rank).fetch_add(1, Ordering::Release);
            futex::wake(self.bell(rank));
        }
    }

    /// Sleeps while `idle` holds, until somebody notifies `rank`, at most for `timeout`.
    pub(crate) fn sleep(&self, rank: usize, timeout: Duration, idle: impl FnOnce() -> bool) {
        let bell = self.bell(rank).load(Ordering::Acquire);
        self.sleepers(rank).fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if idle() {
            futex::wait(self.bell(rank), bell, timeout);
        }
        self.sleepers(rank).fetch_sub(1, Ordering::Relaxed);
    }

    /// Shows the others in which operation a rank is.
    pub(crate) fn post(&self, rank: usize, header: &[u8; HEADER_BYTES]) {
        let base = self.layout.rank_at(rank) + 2 * LINE;
        let version = self.word(base);
        // ORDER: a reader that meets an odd or a changed version has read words of two posts.
        let now = version.load(Ordering::Relaxed);
        version.store(now + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (index, bytes) in header.as_chunks::<8>().0.iter().enumerate() {
            self.word(base + 8 + 8 * index).store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        version.store(now + 2, Ordering::Release);
    }

    /// Returns what a rank has posted last; `None` if it posts right now or never has.
    pub(crate) fn posted(&self, rank: usize) -> Option<[u8; HEADER_BYTES]> {
        let base = self.layout.rank_at(rank) + 2 * LINE;
        let before = self.word(base).load(Ordering::Acquire);
        let mut header = [0; HEADER_BYTES];
        for (index, bytes) in header.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = self.word(base + 8 + 8 * index).load(Ordering::Relaxed).to_le_bytes();
        }
        fence(Ordering::Acquire);
        let after = self.word(base).load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2) && before > 0).then_some(header)
    }

    /// The pipe from one rank to another.
    pub(crate) fn pipe(&self, from: usize, to: usize) -> Pipe<'_> {
        let control = self.layout.pipe_control_at(from, to);
        let data = self.layout.pipe_at(from, to);
        Pipe { segment: self, written: control, read: control + LINE, data }
    }

    /// The header in the slot of a rank for a turn.
    ///
    /// # Safety
    /// Nobody writes to it meanwhile.
    pub(crate) unsafe fn slot_head(&self, rank: usize, turn: u64) -> &[u8; HEADER_BYTES] {
        // SAFETY: it lies inside of the mapping, and the caller guarantees the rest.
        unsafe { &*self.at(self.slot_base(rank, turn)).cast() }
    }

    /// As [`Segment::slot_head`], to write.
    ///
    /// # Safety
    /// Nobody else reads or writes it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the protocol, not the borrow, gives exclusive access")]
    pub(crate) unsafe fn slot_head_mut(&self, rank: usize, turn: u64) -> &mut [u8; HEADER_BYTES] {
        // SAFETY: it lies inside of the mapping, and the caller guarantees the rest.
        unsafe { &mut *self.at(self.slot_base(rank, turn)).cast() }
    }

    /// A span of the data in the slot of a rank for a turn.
    ///
    /// # Safety
    /// Nobody writes to it meanwhile.
    pub(crate) unsafe fn slot(&self, rank: usize, turn: u64, span: Range<usize>) -> &[u8] {
        let base = self.slot_span(rank, turn, &span);
        // SAFETY: it lies inside of the mapping, and the caller guarantees the rest.
        unsafe { slice::from_raw_parts(self.at(base), span.len()) }
    }

    /// As [`Segment::slot`], to write.
    ///
    /// # Safety
    /// Nobody else reads or writes it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the protocol, not the borrow, gives exclusive access")]
    pub(crate) unsafe fn slot_mut(&self, rank: usize, turn: u64, span: Range<usize>) -> &mut [u8] {
        let base = self.slot_span(rank, turn, &span);
        // SAFETY: it lies inside of the mapping, and the caller guarantees the rest.
        unsafe { slice::from_raw_parts_mut(self.at(base), span.len()) }
    }

    fn slot_span(&self, rank: usize, turn: u64, span: &Range<usize>) -> usize {
        assert!(span.start <= span.end && span.end <= self.layout.slot_bytes, "{span:?} of a slot");
        self.slot_base(rank, turn) + SLOT_HEAD + span.start
    }

    fn slot_base(&self, rank: usize, turn: u64) -> usize {
        self.layout.slot_at(rank, (turn % SLOTS as u64) as usize)
    }
}

/// A bounded queue of bytes with one writer and one reader.
pub(crate) struct Pipe<'a> {
    segment: &'a Segment,
    written: usize,
    read: usize,
    data: usize,
}

impl Pipe<'_> {
    fn capacity(&self) -> usize {
        self.segment.layout.pipe_bytes
    }

    /// Bytes in the pipe. What a peer writes to its words must not lead outside of the memory.
    fn fill(&self, written: u64, read: u64) -> io::Result<usize> {
        let len = written.wrapping_sub(read);
        if len > self.capacity() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the shared memory is damaged"));
        }
        Ok(len as usize)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let written = self.segment.word(self.written).load(Ordering::Acquire);
        written == self.segment.word(self.read).load(Ordering::Acquire)
    }

    pub(crate) fn is_full(&self) -> bool {
        let written = self.segment.word(self.written).load(Ordering::Acquire);
        let read = self.segment.word(self.read).load(Ordering::Acquire);
        written.wrapping_sub(read) >= self.capacity() as u64
    }

    /// Writes as much of `parts` as fits. Called by the writer only.
    pub(crate) fn push(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let written = self.segment.word(self.written).load(Ordering::Relaxed);
        let read = self.segment.word(self.read).load(Ordering::Acquire);
        let mut room = self.capacity() - self.fill(written, read)?;
        let mut position = written;
        for part in parts {
            let count = part.len().min(room);
            self.copy(position, count, |memory, offset, len| {
                // SAFETY: `memory` is a span of the pipe that the reader has left (it lies behind
                // `written`), and `part` is memory of this process.
                unsafe { memory.copy_from_nonoverlapping(part[offset..].as_ptr(), len) };
            });
            position += count as u64;
            room -= count;
        }
        // A store of the same would only take the line from the other side.
        if position != written {
            self.segment.word(self.written).store(position, Ordering::Release);
        }
        Ok((position - written) as usize)
    }

    /// Reads as much into `parts` as is there. Called by the reader only.
    pub(crate) fn pop(&self, parts: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        let written = self.segment.word(self.written).load(Ordering::Acquire);
        let read = self.segment.word(self.read).load(Ordering::Relaxed);
        let mut there = self.fill(written, read)?;
        let mut position = read;
        for part in parts {
            let count = part.len().min(there);
            self.copy(position, count, |memory, offset, len| {
                // SAFETY: `memory` is a span of the pipe that the writer has published and will
                // not touch before `read` has passed it; `part` is memory of this process.
                unsafe { part[offset..].as_mut_ptr().copy_from_nonoverlapping(memory, len) };
            });
            position += count as u64;
            there -= count;
        }
        if position != read {
            self.segment.word(self.read).store(position, Ordering::Release);
        }
        Ok((position - read) as usize)
    }

    /// Calls `copy(memory, offset, len)` for the one or two spans of `count` bytes at `position`.
    fn copy(&self, position: u64, count: usize, mut copy: impl FnMut(*mut u8, usize, usize)) {
        let start = (position % self.capacity() as u64) as usize;
        let first = count.min(self.capacity() - start);
        if first > 0 {
            copy(self.segment.at(self.data + start), 0, first);
        }
        if count > first {
            copy(self.segment.at(self.data), first, count - first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, IoSliceMut};

    #[test]
    fn a_pipe_is_bounded_and_wraps() {
        let segment = Segment::anonymous(2).unwrap();
        let pipe = segment.pipe(0, 1);
        let capacity = segment.layout().pipe_bytes;
        let data: Vec<u8> = (0..capacity + 10).map(|i| i as u8).collect();
        assert!(pipe.is_empty());
        assert_eq!(
            pipe.push(&[IoSlice::new(&data[..7]), IoSlice::new(&data[7..])]).unwrap(),
            capacity
        );
        assert!(pipe.is_full());
        let mut out = vec![0; 100];
        assert_eq!(pipe.pop(&mut [IoSliceMut::new(&mut out)]).unwrap(), 100);
        assert_eq!(out, data[..100]);
        assert_eq!(pipe.push(&[IoSlice::new(&data)]).unwrap(), 100);
        let mut rest = vec![0; capacity + 1];
        assert_eq!(pipe.pop(&mut [IoSliceMut::new(&mut rest)]).unwrap(), capacity);
        assert_eq!(rest[..capacity - 100], data[100..capacity]);
        assert_eq!(rest[capacity - 100..capacity], data[..100]);
        assert!(segment.pipe(1, 0).is_empty());
    }

    #[test]
    fn damaged_words_are_an_error() {
        let segment = Segment::anonymous(2).unwrap();
        segment.word(segment.layout.pipe_control_at(0, 1)).store(u64::MAX / 2, Ordering::Relaxed);
        let mut out = [0; 8];
        assert!(segment.pipe(0, 1).pop(&mut [IoSliceMut::new(&mut out)]).is_err());
        assert!(segment.pipe(0, 1).push(&[IoSlice::new(&out)]).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_mapping_sees_the_same_bytes_and_a_stranger_does_not() {
        let (made, path) = Segment::create(3, 42).unwrap();
        let seen = Segment::open(&path, 3, 42).unwrap();
        seen.arrive(1);
        assert_eq!(made.wait_for_arrivals(0, Duration::from_millis(1)), [0, 2]);
        made.pipe(0, 1).push(&[IoSlice::new(b"hello")]).unwrap();
        let mut out = [0; 5];
        assert_eq!(seen.pipe(0, 1).pop(&mut [IoSliceMut::new(&mut out)]).unwrap(), 5);
        assert_eq!(&out, b"hello");
        seen.post(2, &[7; HEADER_BYTES]);
        assert_eq!((made.posted(2), made.posted(1)), (Some([7; HEADER_BYTES]), None));
        assert!(Segment::open(&path, 3, 43).is_err());
        assert!(Segment::open(&path, 2, 42).is_err());
        drop(made);
        assert!(Segment::open(&path, 3, 42).is_err());
    }
}
