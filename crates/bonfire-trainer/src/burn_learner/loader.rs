//! A loader of Burn that hands out this rank's share of every epoch.

use crate::{Context, TrainError};
use bonfire_data::{
    Batches, Collate, DataError, DataLoader as ShardLoader, Dataset as ShardDataset, DatasetDigest,
    LoaderConfig, SampleContext, Shard,
};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::transform::PartialDataset;
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::Device;
use std::sync::Arc;

/// Builds a [`DistributedLoader`]; the counterpart of Burn's `DataLoaderBuilder`.
///
/// ```no_run
/// # use bonfire_trainer::burn_learner::DistributedLoaderBuilder;
/// # use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
/// # fn build(batcher: impl Batcher<u8, u8> + 'static) -> Result<(), Box<dyn std::error::Error>> {
/// let train = DistributedLoaderBuilder::new(batcher)
///     .batch_size(32)
///     .shuffle(42)
///     .num_workers(2)
///     .build(InMemDataset::new(vec![0_u8; 1000]))?;
/// # Ok(())
/// # }
/// ```
pub struct DistributedLoaderBuilder<I, O> {
    batcher: Arc<dyn Batcher<I, O>>,
    config: LoaderConfig,
    device: Device,
}

impl<I, O> DistributedLoaderBuilder<I, O>
where
    I: Send + Sync + Clone + 'static,
    O: Send + 'static,
{
    /// Begins a loader whose batches `batcher` makes.
    pub fn new(batcher: impl Batcher<I, O> + 'static) -> Self {
        let device = Device::default();
        Self { batcher: Arc::new(batcher), config: LoaderConfig::default(), device }
    }

    /// Sets the batch size of each rank. Default 1.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.config.batch_size = batch_size;
        self
    }

    /// Gives each epoch its own random order, that of `seed` and the epoch's number: the same on
    /// all ranks, and after a resume. Default: the data set's order.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        (self.config.shuffle, self.config.seed) = (true, seed);
        self
    }

    /// Sets how many threads build batches ahead. Default 0: none.
    #[must_use]
    pub fn num_workers(mut self, num_workers: usize) -> Self {
        self.config.workers = num_workers;
        self
    }

    /// Leaves out the samples that do not fill a batch on every rank, where otherwise the epoch is
    /// filled up with samples from its beginning. Default false.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.config.drop_last = drop_last;
        self
    }

    /// Sets the device of the batches until the strategy moves the loader to the model's.
    #[must_use]
    pub fn set_device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Makes the loader of this thread's rank.
    ///
    /// # Errors
    /// [`TrainError::NotInitialized`]; [`TrainError::Data`] when an epoch of `dataset` has no batch
    /// for this rank.
    pub fn build<D: Dataset<I> + 'static>(
        self,
        dataset: D,
    ) -> Result<Arc<dyn DataLoader<O>>, TrainError> {
        let loader = DistributedLoader {
            context: Context::expect_current()?,
            dataset: Arc::new(dataset),
            batcher: self.batcher,
            config: self.config,
            device: self.device,
        };
        // Only for its errors: nothing is read.
        drop(loader.sharded().with_workers(0).batches(loader.shard(), 0, 0)?);
        Ok(Arc::new(loader))
    }
}

/// Hands out this rank's share of the epoch at hand, which the strategy names.
///
/// The order of an epoch, and who takes which sample, are those of
/// [`DistributedSampler`](bonfire_data::DistributedSampler); all ranks have equally many batches.
pub struct DistributedLoader<I, O> {
    context: Context,
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    config: LoaderConfig,
    device: Device,
}

impl<I: Send + 'static, O: Send + 'static> DistributedLoader<I, O> {
    fn shard(&self) -> Shard {
        Shard { index: self.context.rank(), count: self.context.world_size() }
    }

    fn sharded(&self) -> ShardLoader<Items<I>, BatchOn<I, O>> {
        let items = Items(self.dataset.clone());
        let collate = BatchOn { batcher: self.batcher.clone(), device: self.device.clone() };
        ShardLoader::new(Arc::new(items), Arc::new(collate), self.config)
    }

    fn batches(&self) -> Result<Batches<O>, DataError> {
        self.sharded().batches(self.shard(), self.context.epoch(), 0)
    }

    fn replaced(&self, dataset: Arc<dyn Dataset<I>>, device: Device) -> Self {
        let (context, batcher) = (self.context.clone(), self.batcher.clone());
        Self { context, dataset, batcher, config: self.config, device }
    }
}

impl<I, O> DataLoader<O> for DistributedLoader<I, O>
where
    I: Send + Sync + Clone + 'static,
    O: Send + 'static,
{
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let (batches, refused) = match self.batches() {
            Ok(batches) => (Some(batches), None),
            Err(error) => (None, Some(error)),
        };
        Box::new(ShareOfEpoch { batches, refused, seen: 0, total: self.num_items() })
    }

    /// The samples that all ranks together see in an epoch.
    fn num_items(&self) -> usize {
        if !self.config.drop_last {
            return self.dataset.len();
        }
        let shard = self.shard();
        self.sharded().num_batches(shard) * self.config.batch_size * shard.count
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        self.context.count_sharded_loader();
        Arc::new(self.replaced(self.dataset.clone(), device.clone()))
    }

    /// Some samples of the data set, of which each rank takes its share.
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let part: PartialDataset<_, I> = PartialDataset::new(self.dataset.clone(), start, end);
        Arc::new(self.replaced(Arc::new(part), self.device.clone()))
    }
}

/// The batches of one rank in one epoch.
struct ShareOfEpoch<O> {
    batches: Option<Batches<O>>,
    refused: Option<DataError>,
    /// Samples that all ranks together have seen.
    seen: usize,
    total: usize,
}

impl<O> Iterator for ShareOfEpoch<O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.refused.take() {
            return Some(Err(DatasetError::new(error)));
        }
        let batch = match self.batches.as_mut()?.next()? {
            Ok(batch) => batch,
            Err(error) => return Some(Err(DatasetError::new(error))),
        };
        self.seen = usize::try_from(batch.cursor_after).unwrap_or(self.total);
        // Padding is kept, so every rank has samples in every batch.
        batch.data.map(Ok)
    }
}

impl<O> DataLoaderIterator<O> for ShareOfEpoch<O> {
    fn progress(&self) -> Progress {
        Progress::new(self.seen, self.total, Some("items".to_string()))
    }
}

/// A data set of Burn as one of ours.
struct Items<I>(Arc<dyn Dataset<I>>);

impl<I: Send + 'static> ShardDataset for Items<I> {
    type Item = I;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, context: &SampleContext) -> Result<I, DataError> {
        self.0.get(context.index).map_err(DataError::other)
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest { num_samples: self.len() as u64, class_names: Vec::new(), content: 0 }
    }
}

/// A batcher of Burn on a device.
struct BatchOn<I, O> {
    batcher: Arc<dyn Batcher<I, O>>,
    device: Device,
}

impl<I: Send + 'static, O: Send + 'static> Collate<I> for BatchOn<I, O> {
    type Batch = O;

    fn collate(&self, items: Vec<I>) -> Result<O, DataError> {
        Ok(self.batcher.batch(items, &self.device))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test reports by panicking")]
mod tests {
    use super::*;
    use bonfire_comm::local;
    use burn::data::dataset::InMemDataset;

    struct Listed;

    impl Batcher<usize, Vec<usize>> for Listed {
        fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
            items
        }
    }

    /// The batches of every rank in an epoch of ten samples.
    fn epoch(world: usize, epoch: u64, drop_last: bool) -> Vec<Vec<Vec<usize>>> {
        local::spawn(world, |group| {
            let context = Context::enter(group, 0);
            context.set_epoch(epoch);
            let builder = DistributedLoaderBuilder::new(Listed).batch_size(2).shuffle(3);
            let loader = builder.drop_last(drop_last).build(InMemDataset::new((0..10).collect()));
            let loader = loader.unwrap();
            let mut batches = loader.iter();
            let listed: Vec<Vec<usize>> = batches.by_ref().map(Result::unwrap).collect();
            assert!(batches.progress().is_completed(), "{:?}", batches.progress());
            listed
        })
    }

    #[test]
    fn ranks_share_the_order_of_an_epoch_and_epochs_differ() {
        let alone = epoch(1, 4, false).concat().concat();
        let ranks = epoch(2, 4, false);
        for (batch, pair) in alone.chunks(4).enumerate() {
            let of_rank = |rank: usize| ranks[rank][batch].iter().copied();
            let dealt: Vec<usize> = of_rank(0).zip(of_rank(1)).flat_map(|(a, b)| [a, b]).collect();
            assert_eq!(dealt, pair);
        }
        assert_ne!(alone, epoch(1, 5, false).concat().concat());
    }

    #[test]
    fn all_ranks_have_batches_of_the_same_sizes() {
        for (drop_last, sizes) in [(false, vec![2, 2]), (true, vec![2])] {
            for rank in epoch(3, 0, drop_last) {
                assert_eq!(rank.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
            }
        }
    }

    #[test]
    fn a_loader_needs_a_rank_and_something_to_load() {
        let build = |count: usize| {
            let dataset = InMemDataset::new((0..count).collect());
            DistributedLoaderBuilder::new(Listed).build(dataset).err().unwrap().to_string()
        };
        assert!(build(4).contains("bonfire::init()"));
        let _context = crate::init().unwrap();
        assert!(build(0).contains("0 samples are too few"));
    }
}
