//! Deterministic sampling, split over shards.

use crate::permutation::Permutation;
use crate::shard_batches::{Layout, ShardBatches};
use crate::{DataError, Shard};

/// The options of a [`DistributedSampler`]; names and defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerConfig {
    /// Whether each epoch has its own random order. Default: true.
    pub shuffle: bool,
    /// The seed of the order. Default: 0.
    pub seed: u64,
    /// Whether the samples that do not fill a batch on every shard are left out. Default: false,
    /// where the epoch is padded with samples from its head until every shard has as many.
    pub drop_last: bool,
    /// The batch size of each shard. Default: 1.
    pub batch_size: usize,
    /// After how many batches of each shard an epoch ends, if the samples last so long. Default: none.
    pub limit_batches: Option<usize>,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self { shuffle: true, seed: 0, drop_last: false, batch_size: 1, limit_batches: None }
    }
}

impl SamplerConfig {
    /// Says that there are fewer samples than `needed`.
    pub(crate) fn too_few(
        &self,
        num_samples: usize,
        num_shards: usize,
        needed: usize,
    ) -> DataError {
        let Self { batch_size, drop_last, .. } = *self;
        DataError::TooFewSamples { num_samples, num_shards, batch_size, drop_last, needed }
    }
}

/// Decides which samples a shard reads in which batch.
///
/// The order of an epoch is a permutation that depends on `seed + epoch` only, the same on every
/// shard. With `N` shards and a batch size of `B`, global batch `k` is positions `kNB..(k+1)NB` of
/// it, and shard `r` takes positions `kNB + r`, `kNB + r + N`, and so on.
///
/// # Reference
///
/// PyTorch's `DistributedSampler` followed by a `DataLoader` with the same `drop_last`: the same
/// positions of the order, which itself comes from another generator.
///
/// # Resume
///
/// The cursor is the number of samples that all shards together have consumed in this epoch. It says
/// nothing of shards or batch size, so an epoch can be continued with others:
/// [`batches_from`](Self::batches_from) covers exactly the samples not yet seen.
#[derive(Debug, Clone)]
pub struct DistributedSampler {
    num_samples: usize,
    shard: Shard,
    config: SamplerConfig,
    epoch: u64,
}

impl DistributedSampler {
    /// Makes a sampler of `num_samples` samples for one shard, in epoch 0.
    ///
    /// Without `drop_last` there may be fewer samples than shards: the head is repeated as often as
    /// needed, and the repetitions are marked as padding.
    ///
    /// # Errors
    ///
    /// - [`DataError::InvalidShard`] when the shard does not exist.
    /// - [`DataError::InvalidOption`] when the batch size or the limit is 0.
    /// - [`DataError::TooFewSamples`] when an epoch would have no batch.
    pub fn new(num_samples: usize, shard: Shard, config: SamplerConfig) -> Result<Self, DataError> {
        let shard = shard.validated()?;
        let SamplerConfig { batch_size, drop_last, .. } = config;
        if batch_size == 0 {
            let rule = "it must be at least 1";
            return Err(DataError::InvalidOption { name: "batch_size", value: 0, rule });
        }
        if config.limit_batches == Some(0) {
            let rule = "it must be at least 1";
            return Err(DataError::InvalidOption { name: "limit_batches", value: 0, rule });
        }
        if num_samples.checked_add(shard.count).is_none() {
            let rule = "with the number of shards added it must fit into usize";
            return Err(DataError::InvalidOption { name: "num_samples", value: num_samples, rule });
        }
        let sampler = Self { num_samples, shard, config, epoch: 0 };
        if sampler.num_batches() == 0 {
            let global_size = shard.count.saturating_mul(batch_size);
            let needed = if drop_last { global_size } else { 1 };
            return Err(config.too_few(num_samples, shard.count, needed));
        }
        Ok(sampler)
    }

    /// Chooses the epoch, and with it the order.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of samples in the data set.
    pub fn num_samples(&self) -> usize {
        self.num_samples
    }

    /// Returns the number of batches in a whole epoch, the same on every shard.
    pub fn num_batches(&self) -> usize {
        self.layout(0).num_batches()
    }

    /// Lists the batches of this epoch that follow `cursor` consumed samples.
    ///
    /// The order is computed here, in time linear in the number of samples.
    ///
    /// # Errors
    ///
    /// - [`DataError::CursorBeyondEnd`] when there are fewer than `cursor` samples.
    /// - [`DataError::PermutationTooLarge`] when the order does not fit into memory.
    pub fn batches_from(&self, cursor: u64) -> Result<ShardBatches, DataError> {
        let num_samples = self.num_samples;
        let start = usize::try_from(cursor)
            .ok()
            .filter(|&start| start <= num_samples)
            .ok_or(DataError::CursorBeyondEnd { cursor, num_samples })?;
        // More shards may have come to the limit with more samples: then the epoch is over.
        let start = start.min(self.epoch_samples());
        let order = if self.config.shuffle {
            Permutation::shuffled(self.num_samples, self.config.seed.wrapping_add(self.epoch))?
        } else {
            Permutation::Identity
        };
        Ok(ShardBatches::new(self.layout(start), order))
    }

    /// Returns the number of samples of an epoch over all shards.
    fn epoch_samples(&self) -> usize {
        let limit = self.config.limit_batches.unwrap_or(usize::MAX);
        let all_shards = self.config.batch_size.saturating_mul(self.shard.count);
        self.num_samples.min(limit.saturating_mul(all_shards))
    }

    fn layout(&self, start: usize) -> Layout {
        Layout {
            num_samples: self.epoch_samples(),
            start,
            shard: self.shard,
            batch_size: self.config.batch_size,
            drop_last: self.config.drop_last,
        }
    }
}

#[cfg(test)]
mod tests;
