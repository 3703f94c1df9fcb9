//! What a data set is: numbered samples with a digest.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::DataError;

/// Says which sample is asked for, and everything its randomness may depend on.
///
/// A data set that augments draws from a generator seeded with [`random_seed`](Self::random_seed).
/// Then a sample looks the same whichever rank or worker thread reads it, with any world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SampleContext {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The index of the sample in the data set.
    pub index: usize,
}

impl SampleContext {
    /// Mixes seed, epoch and index into one well-spread number, to seed a generator with.
    ///
    /// The value is the same on every platform and stays the same in later versions.
    pub fn random_seed(&self) -> u64 {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.epoch.to_le_bytes());
        key[8..].copy_from_slice(&(self.index as u64).to_le_bytes());
        xxh3_64_with_seed(&key, self.seed)
    }
}

/// Numbered samples that any thread can read in any order.
pub trait Dataset: Send + Sync {
    /// One sample.
    type Item: Send;

    /// Returns the number of samples; it must not change.
    fn len(&self) -> usize;

    /// Returns true when there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the sample `context.index`.
    ///
    /// The result must depend on `context` only: not on earlier calls, threads or ranks.
    ///
    /// # Errors
    ///
    /// [`DataError::IndexOutOfRange`] when the index is not below [`len`](Self::len), and whatever
    /// reading can run into; wrap foreign errors with [`DataError::other`].
    fn get(&self, context: &SampleContext) -> Result<Self::Item, DataError>;

    /// Returns what two ranks compare to know that they read the same data.
    fn digest(&self) -> DatasetDigest;
}

/// Identifies a data set, so that ranks can agree before the first step that they read the same.
///
/// It holds no paths: ranks on different machines may keep the data in different folders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetDigest {
    /// The number of samples.
    pub num_samples: u64,
    /// The names of the classes in the order of their labels; empty when there are none.
    pub class_names: Vec<String>,
    /// A hash (XXH3) of the contents, or of an index where the contents are too large to read.
    pub content: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_seed_depends_on_each_field_and_never_changes() {
        let context = SampleContext { seed: 1, epoch: 2, index: 3 };
        let others = [
            SampleContext { seed: 2, ..context },
            SampleContext { epoch: 3, ..context },
            SampleContext { index: 2, ..context },
            SampleContext { seed: 1, epoch: 3, index: 2 },
        ];
        for other in others {
            assert_ne!(context.random_seed(), other.random_seed(), "{other:?}");
        }
        assert_eq!(context.random_seed(), 2_806_482_627_441_532_945);
    }
}
