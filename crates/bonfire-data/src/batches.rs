//! Loaded batches, one after the other.

use std::fmt;
use std::time::{Duration, Instant};

use crate::DataError;
use crate::builder::BuildResult;
use crate::workers::WorkerPool;

/// A batch as one shard gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedBatch<B> {
    /// The collated items, or `None` when this shard has none in this global batch, which happens
    /// only with [`Padding::Skip`](crate::Padding::Skip). The shard still takes part in collectives.
    pub data: Option<B>,
    /// How many items `data` holds, padding included.
    pub samples: usize,
    /// Their indices in the data set.
    pub indices: Vec<usize>,
    /// For each of them, whether it is padding.
    pub padding_mask: Vec<bool>,
    /// How many samples all shards together have in this global batch, without padding; at least 1.
    pub global_samples: usize,
    /// The same with padding. The `samples` of all shards add up to this with
    /// [`Padding::Keep`](crate::Padding::Keep), and to `global_samples` with `Skip`.
    pub global_positions: usize,
    /// The cursor to continue from once this global batch is consumed.
    pub cursor_after: u64,
}

impl<B> LoadedBatch<B> {
    /// Returns how many items of `data` are not padding.
    pub fn num_real_samples(&self) -> usize {
        self.padding_mask.iter().filter(|&&padding| !padding).count()
    }
}

/// Where the batches come from.
pub(crate) enum Source<B> {
    /// Built when asked for.
    Inline(Box<dyn Iterator<Item = BuildResult<B>> + Send>),
    /// Built ahead by threads.
    Workers(WorkerPool<B>),
}

/// Yields the batches of one shard in order; see [`DataLoader::batches`](crate::DataLoader::batches).
///
/// An error ends it: after `Some(Err(..))` comes `None`. Dropping it stops and joins the workers.
pub struct Batches<B> {
    source: Option<Source<B>>,
    next: usize,
    num_batches: usize,
    wait_time: Duration,
}

impl<B> Batches<B> {
    pub(crate) fn new(source: Source<B>, num_batches: usize) -> Self {
        Self { source: Some(source), next: 0, num_batches, wait_time: Duration::ZERO }
    }

    /// Returns how long the calls of `next` have waited for data until now.
    ///
    /// Without workers that is the time it took to build the batches.
    pub fn wait_time(&self) -> Duration {
        self.wait_time
    }

    /// Returns how many batches are left, unless an error ends them early.
    pub fn remaining(&self) -> usize {
        self.num_batches - self.next
    }

    fn take_next(&mut self) -> Option<Result<LoadedBatch<B>, DataError>> {
        if self.next == self.num_batches {
            return None;
        }
        let started = Instant::now();
        let result = match self.source.as_mut()? {
            Source::Inline(batches) => batches.next()?,
            Source::Workers(pool) => pool.receive(self.next),
        };
        self.wait_time += started.elapsed();
        self.next = if result.is_ok() { self.next + 1 } else { self.num_batches };
        Some(result)
    }
}

impl<B> Iterator for Batches<B> {
    type Item = Result<LoadedBatch<B>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.take_next();
        if self.next == self.num_batches {
            self.source = None;
        }
        result
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining().min(1), Some(self.remaining()))
    }
}

impl<B> std::iter::FusedIterator for Batches<B> {}

impl<B> fmt::Debug for Batches<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Batches")
            .field("next", &self.next)
            .field("num_batches", &self.num_batches)
            .field("wait_time", &self.wait_time)
            .finish_non_exhaustive()
    }
}
