//! The batches of one shard in one epoch.

use crate::Shard;
use crate::permutation::Permutation;

/// One sample of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SampleRef {
    /// The index of the sample in the data set.
    pub index: usize,
    /// Whether it only fills up the epoch: the same sample also occurs without this mark.
    pub padding: bool,
}

/// The samples one shard reads in one global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardBatch {
    /// The samples of this shard, padding included; never empty.
    pub samples: Vec<SampleRef>,
    /// How many samples all shards together have in this global batch, without padding; at least 1.
    pub global_samples: usize,
    /// The same with padding: the number of shards times the number of `samples`.
    pub global_positions: usize,
    /// The cursor once this global batch is consumed: samples of this epoch seen by all shards
    /// together. Padding does not count, so at the end it is the number of samples at most.
    pub cursor_after: u64,
}

/// Where the batches of an epoch lie in its order, of which it has the first `num_samples`.
///
/// Positions from `start` on are dealt to the shards like cards, `position = start + turn * N + r`;
/// batch `k` is turns `kB..(k+1)B`. Positions at or behind `num_samples` are padding and wrap around.
///
/// INVARIANT: `start <= num_samples`, `num_samples + shard.count` does not overflow, `batch_size >= 1`.
/// Hence no product below overflows: a turn times `N` stays below `num_samples + N`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) num_samples: usize,
    pub(crate) start: usize,
    pub(crate) shard: Shard,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
}

impl Layout {
    /// How many positions each shard takes.
    fn num_turns(&self) -> usize {
        let left = self.num_samples - self.start;
        if self.drop_last {
            let whole = left / self.shard.count;
            whole - whole % self.batch_size
        } else {
            left.div_ceil(self.shard.count)
        }
    }

    pub(crate) fn num_batches(&self) -> usize {
        self.num_turns().div_ceil(self.batch_size)
    }

    fn position(&self, turn: usize) -> usize {
        self.start + turn * self.shard.count
    }
}

/// Yields the batches of one shard in the order of the epoch; see
/// [`DistributedSampler::batches_from`](crate::DistributedSampler::batches_from).
///
/// It owns what it needs, is cheap to clone, and skips (`nth`, `step_by`) in constant time.
#[derive(Debug, Clone)]
pub struct ShardBatches {
    layout: Layout,
    order: Permutation,
    next: usize,
    num_batches: usize,
}

impl ShardBatches {
    pub(crate) fn new(layout: Layout, order: Permutation) -> Self {
        Self { layout, order, next: 0, num_batches: layout.num_batches() }
    }

    fn batch(&self, number: usize) -> ShardBatch {
        let layout = &self.layout;
        let first = number * layout.batch_size;
        let end = first.saturating_add(layout.batch_size).min(layout.num_turns());
        let samples = (first..end).map(|turn| self.sample(turn)).collect();
        let seen_after = layout.position(end).min(layout.num_samples);
        ShardBatch {
            samples,
            global_samples: seen_after - layout.position(first),
            global_positions: (end - first) * layout.shard.count,
            cursor_after: seen_after as u64,
        }
    }

    fn sample(&self, turn: usize) -> SampleRef {
        let position = self.layout.position(turn) + self.layout.shard.index;
        SampleRef {
            index: self.order.sample_at(position % self.layout.num_samples),
            padding: position >= self.layout.num_samples,
        }
    }
}

impl Iterator for ShardBatches {
    type Item = ShardBatch;

    fn next(&mut self) -> Option<ShardBatch> {
        self.nth(0)
    }

    fn nth(&mut self, skip: usize) -> Option<ShardBatch> {
        let number = self.next.saturating_add(skip).min(self.num_batches);
        self.next = (number + 1).min(self.num_batches);
        (number < self.num_batches).then(|| self.batch(number))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.num_batches - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for ShardBatches {}
