//! Which part of a bucket belongs to which rank, when ranks share the optimizer's work.
//!
//! Every bucket is cut into as many equal parts as there are ranks, whatever parameters lie in
//! them: the shares are balanced to a few elements, and a part is what a reduce-scatter delivers
//! and an all-gather collects.
//!
//! # Reference
//! Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
//! SC 2020, arXiv:1910.02054, sections 5.1 and 5.2.

use crate::bucket::{Grain, Segment};
use bonfire_comm::ProcessGroup;
use std::ops::Range;

/// A part's length is a multiple of this, so that parts begin at whole cache lines.
const CACHE_LINE: usize = 16;

/// The cut of all buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sharding {
    rank: usize,
    ranks: usize,
    /// A part's length is a multiple of it.
    grain: usize,
}

impl Sharding {
    pub(crate) fn of(group: &ProcessGroup, grain: Grain) -> Self {
        let grain = grain.elements().max(CACHE_LINE);
        Self { rank: group.rank(), ranks: group.world_size(), grain }
    }

    /// The cut as another rank of the group sees it.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        Self { rank, ..self }
    }

    /// `len` elements and the padding that makes all parts equal.
    pub(crate) fn padded(self, len: usize) -> usize {
        len.next_multiple_of(self.ranks * self.grain)
    }

    /// This rank's elements of a bucket of `padded` elements.
    pub(crate) fn range(self, padded: usize) -> Range<usize> {
        let part = padded / self.ranks;
        self.rank * part..(self.rank + 1) * part
    }

    /// What of the segments lies in this rank's part, counted from its start, and where each piece
    /// begins in its segment.
    pub(crate) fn pieces(
        self,
        segments: &[Segment],
        padded: usize,
    ) -> impl Iterator<Item = Piece<'_>> {
        let own = self.range(padded);
        segments.iter().filter_map(move |segment| {
            let start = segment.range.start.max(own.start);
            let end = segment.range.end.min(own.end);
            (start < end).then(|| Piece {
                segment,
                skipped: start - segment.range.start,
                range: start - own.start..end - own.start,
            })
        })
    }
}

/// A segment's elements in one rank's part of a bucket.
pub(crate) struct Piece<'a> {
    pub(crate) segment: &'a Segment,
    /// Elements of the segment before the piece.
    pub(crate) skipped: usize,
    /// The piece's elements, from the start of the part.
    pub(crate) range: Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(path: &str, range: Range<usize>) -> Segment {
        Segment { path: path.into(), shape: vec![range.len()], range, parameter: 0 }
    }

    #[test]
    fn the_parts_of_all_ranks_are_the_bucket() {
        let segments = [segment("a", 0..10), segment("b", 10..90), segment("c", 90..101)];
        let sharding = Sharding { rank: 0, ranks: 3, grain: CACHE_LINE };
        let padded = sharding.padded(101);
        assert_eq!(padded, 144);
        let mut seen = vec![0; 101];
        for rank in 0..3 {
            let own = sharding.of_rank(rank);
            assert_eq!(own.range(padded).len(), 48);
            for piece in own.pieces(&segments, padded) {
                let start = piece.segment.range.start + piece.skipped;
                assert_eq!(start - own.range(padded).start, piece.range.start);
                seen[start..start + piece.range.len()].iter_mut().for_each(|count| *count += 1);
            }
        }
        assert!(seen.iter().all(|count| *count == 1), "{seen:?}");
    }
}
