//! The loader: data set, sampler, workers and collate put together.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::batches::Source;
use crate::builder::BatchBuilder;
use crate::workers::WorkerPool;
use crate::{Batches, Collate, DataError, Dataset, DistributedSampler, SamplerConfig, Shard};

/// What happens to the samples that only fill up an epoch so that every shard has as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Padding {
    /// They are loaded and marked in [`padding_mask`](crate::LoadedBatch::padding_mask): all shards
    /// have batches of one size. For training.
    #[default]
    Keep,
    /// They are left out: each sample counts exactly once, and a shard may have fewer samples in
    /// the last batch, or none. For evaluation. What the data set itself leaves out
    /// ([`DataError::LeftOut`]) is passed over, too; with `Keep` that is an error.
    Skip,
}

/// The options of a [`DataLoader`]; names and defaults are PyTorch's where it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderConfig {
    /// The batch size of each shard. Default: 1.
    pub batch_size: usize,
    /// How many threads build batches; with 0 they are built when asked for. Default: 0.
    pub workers: usize,
    /// How many batches a worker has in flight. Default: 2.
    pub prefetch_factor: usize,
    /// How long to wait for a batch of a worker; without workers nothing bounds the wait. Default: 300 s
    /// (PyTorch's is none).
    pub timeout: Duration,
    /// The seed of order and augmentation. Default: 0.
    pub seed: u64,
    /// Whether each epoch has its own random order. Default: false.
    pub shuffle: bool,
    /// Whether the samples that do not fill a batch on every shard are left out. Default: false.
    pub drop_last: bool,
    /// What happens to samples that only fill up the epoch. Default: [`Padding::Keep`].
    pub padding: Padding,
    /// After how many batches of each shard an epoch ends, if the samples last so long. Default: none.
    pub limit_batches: Option<usize>,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self {
            batch_size: 1,
            workers: 0,
            prefetch_factor: 2,
            timeout: Duration::from_secs(300),
            seed: 0,
            shuffle: false,
            drop_last: false,
            padding: Padding::Keep,
            limit_batches: None,
        }
    }
}

/// Loads the batches of a data set, ahead of time when it has workers.
///
/// The loader itself is stateless: every [`batches`](Self::batches) call names shard, epoch and
/// cursor, and starts its own workers.
#[derive(Debug)]
pub struct DataLoader<D: ?Sized, C: ?Sized> {
    dataset: Arc<D>,
    collate: Arc<C>,
    config: LoaderConfig,
}

impl<D, C> DataLoader<D, C>
where
    D: Dataset + ?Sized + 'static,
    C: Collate<D::Item> + ?Sized + 'static,
    C::Batch: 'static,
{
    /// Makes a loader; [`batches`](Self::batches) checks the options.
    pub fn new(dataset: Arc<D>, collate: Arc<C>, config: LoaderConfig) -> Self {
        Self { dataset, collate, config }
    }

    /// Replaces the seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Replaces the batch size of each shard.
    #[must_use]
    pub fn with_batch_size(mut self, batch_size: usize) -> Self {
        self.config.batch_size = batch_size;
        self
    }

    /// Replaces the number of worker threads.
    #[must_use]
    pub fn with_workers(mut self, workers: usize) -> Self {
        self.config.workers = workers;
        self
    }

    /// Replaces the number of batches after which an epoch ends.
    #[must_use]
    pub fn with_limit_batches(mut self, limit_batches: Option<usize>) -> Self {
        self.config.limit_batches = limit_batches;
        self
    }

    /// Replaces what becomes of padding samples.
    #[must_use]
    pub fn with_padding(mut self, padding: Padding) -> Self {
        self.config.padding = padding;
        self
    }

    /// Returns the data set.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// Returns the options.
    pub fn config(&self) -> &LoaderConfig {
        &self.config
    }

    /// Returns the number of batches in a whole epoch, the same for every shard of `shard.count`.
    ///
    /// It is 0 when [`batches`](Self::batches) would refuse the options, which says why.
    pub fn num_batches(&self, shard: Shard) -> usize {
        self.sampler(shard).map_or(0, |sampler| sampler.num_batches())
    }

    /// Loads what `shard` reads of `epoch` after `cursor` samples are consumed by all shards.
    ///
    /// A cursor of 0 is a whole epoch; otherwise it is the
    /// [`cursor_after`](crate::LoadedBatch::cursor_after) of the last batch that was consumed, which
    /// may come from a run with another number of shards or another batch size.
    ///
    /// # Errors
    ///
    /// - [`DataError::InvalidShard`] when the shard does not exist.
    /// - [`DataError::InvalidOption`] when batch size, prefetch factor or limit is 0.
    /// - [`DataError::TooFewSamples`] when an epoch has no batch, or when there are more shards than
    ///   samples although padding is kept: then one sample would count several times in a step.
    /// - [`DataError::CursorBeyondEnd`] when the data set has fewer than `cursor` samples.
    /// - [`DataError::WorkerSpawn`] when the system refuses a thread.
    pub fn batches(
        &self,
        shard: Shard,
        epoch: u64,
        cursor: u64,
    ) -> Result<Batches<C::Batch>, DataError> {
        let mut sampler = self.sampler(shard)?;
        sampler.set_epoch(epoch);
        let plan = sampler.batches_from(cursor)?;
        let builder = self.builder(epoch);
        let num_batches = plan.len();
        let workers = self.config.workers.min(num_batches);
        let source = if workers == 0 {
            let built = move |(number, batch)| builder.build(number, batch);
            Source::Inline(Box::new(plan.enumerate().map_while(built)))
        } else {
            Source::Workers(WorkerPool::start(builder, &plan, workers, &self.config)?)
        };
        Ok(Batches::new(source, num_batches))
    }

    fn sampler(&self, shard: Shard) -> Result<DistributedSampler, DataError> {
        let shard = shard.validated()?;
        let LoaderConfig { batch_size, seed, shuffle, drop_last, limit_batches, .. } = self.config;
        let config = SamplerConfig { shuffle, seed, drop_last, batch_size, limit_batches };
        if self.config.prefetch_factor == 0 {
            let rule = "it must be at least 1";
            return Err(DataError::InvalidOption { name: "prefetch_factor", value: 0, rule });
        }
        let (num_samples, num_shards) = (self.dataset.len(), shard.count);
        if self.config.padding == Padding::Keep && num_shards > num_samples {
            return Err(config.too_few(num_samples, num_shards, num_shards));
        }
        DistributedSampler::new(num_samples, shard, config)
    }

    fn builder(&self, epoch: u64) -> BatchBuilder<D, C> {
        BatchBuilder {
            dataset: Arc::clone(&self.dataset),
            collate: Arc::clone(&self.collate),
            seed: self.config.seed,
            epoch,
            padding: self.config.padding,
            stop: Arc::new(AtomicBool::new(false)),
        }
    }
}

impl<D: ?Sized, C: ?Sized> Clone for DataLoader<D, C> {
    fn clone(&self) -> Self {
        Self {
            dataset: Arc::clone(&self.dataset),
            collate: Arc::clone(&self.collate),
            config: self.config,
        }
    }
}

#[cfg(test)]
mod tests;
