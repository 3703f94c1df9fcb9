//! From a list of items to a batch.

use crate::DataError;

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
