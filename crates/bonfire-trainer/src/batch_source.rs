use bonfire_data::{
    Batches, Collate, DataError, DataLoader, Dataset, DatasetDigest, Padding, Shard,
};

/// Data that the trainer can go through; a [`DataLoader`] is one.
pub trait BatchSource {
    /// What a step gets.
    type Batch: Send + 'static;

    /// Number of samples over all ranks.
    fn num_samples(&self) -> usize;

    /// Samples in an ordinary batch of one rank.
    fn batch_size(&self) -> usize;

    /// Batches of one rank in an epoch; the same for every rank.
    fn num_batches(&self, shard: Shard) -> usize;

    /// Identity of the data, compared over ranks.
    fn digest(&self) -> DatasetDigest;

    /// What the order of the samples depends on beside the epoch, in words that ranks compare.
    fn order(&self) -> String;

    /// This rank's batches of an epoch from a cursor on, without padding samples.
    ///
    /// # Errors
    /// When the shard has no samples or the cursor lies beyond the end.
    fn batches(
        &self,
        shard: Shard,
        epoch: u64,
        cursor: u64,
    ) -> Result<Batches<Self::Batch>, DataError>;
}

impl<D, C> BatchSource for DataLoader<D, C>
where
    D: Dataset + ?Sized + 'static,
    C: Collate<D::Item> + 'static,
    C::Batch: 'static,
{
    type Batch = C::Batch;

    fn num_samples(&self) -> usize {
        self.dataset().len()
    }

    fn batch_size(&self) -> usize {
        self.config().batch_size
    }

    fn num_batches(&self, shard: Shard) -> usize {
        DataLoader::num_batches(&self.clone().with_padding(Padding::Skip), shard)
    }

    fn digest(&self) -> DatasetDigest {
        self.dataset().digest()
    }

    fn order(&self) -> String {
        let config = self.config();
        match config.shuffle {
            true => {
                let (seed, drop_last) = (config.seed, config.drop_last);
                format!("shuffled by seed {seed}, drop_last {drop_last}")
            }
            false => format!("as stored, drop_last {}", config.drop_last),
        }
    }

    fn batches(
        &self,
        shard: Shard,
        epoch: u64,
        cursor: u64,
    ) -> Result<Batches<C::Batch>, DataError> {
        DataLoader::batches(&self.clone().with_padding(Padding::Skip), shard, epoch, cursor)
    }
}
