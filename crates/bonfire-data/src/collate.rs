//! From a list of items to a batch.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::DataError;

/// Says which batch is made, and everything its randomness may depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchContext {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// How many samples of the epoch come before this global batch: the same on all shards, and after
    /// a resume.
    pub position: u64,
}

impl BatchContext {
    /// Mixes seed, epoch and position into one well-spread number, to seed a generator with.
    ///
    /// No [`SampleContext::random_seed`](crate::SampleContext::random_seed) mixes the same bytes.
    pub fn random_seed(&self) -> u64 {
        let mut key = *b"batch\0\0\0................";
        key[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        key[16..].copy_from_slice(&self.position.to_le_bytes());
        xxh3_64_with_seed(&key, self.seed)
    }
}

/// Makes a batch out of the items of one shard.
///
/// Worker threads call it, at the same time for different batches. A closure
/// `Fn(Vec<I>) -> Result<B, DataError>` is a `Collate` too.
pub trait Collate<I>: Send + Sync {
    /// One batch.
    type Batch: Send;

    /// Makes a batch of `items`, which is never empty, and keeps their order.
    ///
    /// # Errors
    ///
    /// Whatever makes the items impossible to join, such as different shapes;
    /// [`DataError::message`] and [`DataError::other`] build such an error.
    fn collate(&self, items: Vec<I>) -> Result<Self::Batch, DataError>;

    /// Makes a batch that may depend on where in the run it stands; the loader calls this.
    ///
    /// Without an implementation it is [`collate`](Self::collate).
    ///
    /// # Errors
    ///
    /// As [`collate`](Self::collate).
    fn collate_at(&self, items: Vec<I>, context: &BatchContext) -> Result<Self::Batch, DataError> {
        let _ = context;
        self.collate(items)
    }
}

impl<I, B, F> Collate<I> for F
where
    F: Fn(Vec<I>) -> Result<B, DataError> + Send + Sync,
    B: Send,
{
    type Batch = B;

    fn collate(&self, items: Vec<I>) -> Result<B, DataError> {
        self(items)
    }
}
