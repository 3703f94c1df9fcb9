//! Where things are in a segment.

/// Bytes that two processors never share by accident (two lines, because of the prefetcher).
pub(super) const LINE: usize = 128;
/// Slots of each rank: one is filled, one reduced, one collected, and one is spare, so that ranks
/// need not go in step.
pub(crate) const SLOTS: usize = 4;
/// Bytes before a slot's data: the header of the operation.
pub(super) const SLOT_HEAD: usize = LINE;
const PAGE: usize = 4096;

/// Sizes and offsets of a segment, in bytes. Equal on all ranks, because it follows from their
/// number alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Ranks that share the segment.
    pub(crate) ranks: usize,
    /// Capacity of a pipe, a power of two.
    pub(crate) pipe_bytes: usize,
    /// Data of a slot.
    pub(crate) slot_bytes: usize,
}

impl Layout {
    /// Lays out a segment for `ranks` ranks. Pages that are never touched cost nothing.
    pub(crate) fn new(ranks: usize) -> Self {
        let pipe_bytes = if ranks <= 16 { 256 * 1024 } else { 64 * 1024 };
        Self { ranks, pipe_bytes, slot_bytes: SLOT_BYTES }
    }

    pub(super) fn rank_at(&self, rank: usize) -> usize {
        LINE + rank * RANK_BYTES
    }

    pub(super) fn pipe_control_at(&self, from: usize, to: usize) -> usize {
        self.rank_at(self.ranks) + (from * self.ranks + to) * PIPE_CONTROL_BYTES
    }

    fn pipes_at(&self) -> usize {
        self.pipe_control_at(self.ranks, 0).next_multiple_of(PAGE)
    }

    pub(super) fn pipe_at(&self, from: usize, to: usize) -> usize {
        self.pipes_at() + (from * self.ranks + to) * self.pipe_bytes
    }

    pub(super) fn slot_at(&self, rank: usize, slot: usize) -> usize {
        let stride = (SLOT_HEAD + self.slot_bytes).next_multiple_of(PAGE);
        self.pipe_at(self.ranks, 0) + (rank * SLOTS + slot) * stride
    }

    pub(crate) fn total(&self) -> usize {
        self.slot_at(self.ranks, 0)
    }
}

/// Data of a slot.
///
/// Fastest all-reduce of 2 processes with slots of 64, 128 and 256 KiB, two runs each on 2 cores of an
/// AMD EPYC with 512 KiB of L2 each and 32 MiB of L3: of 814 kB 78 and 77, 75 and 68, 64 and 61 us; of
/// 25 MiB 6.1 and 5.3, 4.9 and 4.6, 5.2 and 4.7 ms.
const SLOT_BYTES: usize = 256 * 1024;
/// Bell and sleeper, closed flag, board, and three counters, each on a line of its own.
const RANK_BYTES: usize = 6 * LINE;
const PIPE_CONTROL_BYTES: usize = 2 * LINE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for ranks in [1, 2, 3, 17] {
            let layout = Layout::new(ranks);
            assert!(layout.rank_at(ranks) <= layout.pipe_control_at(0, 0));
            assert!(
                layout.pipe_control_at(ranks - 1, ranks - 1) + PIPE_CONTROL_BYTES
                    <= layout.pipe_at(0, 0)
            );
            assert!(
                layout.pipe_at(ranks - 1, ranks - 1) + layout.pipe_bytes <= layout.slot_at(0, 0)
            );
            assert_eq!(layout.slot_at(0, SLOTS), layout.slot_at(1, 0));
            assert_eq!(layout.total() % PAGE, 0);
        }
    }
}
