//! A data set held in memory.

use crate::{DataError, Dataset, DatasetDigest, SampleContext};

/// Serves clones of the items of a `Vec`.
#[derive(Debug, Clone)]
pub struct InMemoryDataset<T> {
    items: Vec<T>,
    class_names: Vec<String>,
    content: u64,
}

impl<T: Clone + Send + Sync> InMemoryDataset<T> {
    /// Makes a data set of `items`, in this order.
    pub fn new(items: Vec<T>) -> Self {
        Self { items, class_names: Vec::new(), content: 0 }
    }

    /// Names the classes, in the order of their labels.
    #[must_use]
    pub fn with_class_names(mut self, class_names: Vec<String>) -> Self {
        self.class_names = class_names;
        self
    }

    /// Sets the hash of the contents that goes into the digest.
    ///
    /// It is 0 otherwise, since items of any type cannot be hashed: then ranks compare only the
    /// number of samples and the class names.
    #[must_use]
    pub fn with_content(mut self, content: u64) -> Self {
        self.content = content;
        self
    }

    /// Returns the items.
    pub fn items(&self) -> &[T] {
        &self.items
    }
}

impl<T: Clone + Send + Sync> From<Vec<T>> for InMemoryDataset<T> {
    fn from(items: Vec<T>) -> Self {
        Self::new(items)
    }
}

impl<T: Clone + Send + Sync> Dataset for InMemoryDataset<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.items.len()
    }

    fn get(&self, context: &SampleContext) -> Result<T, DataError> {
        self.items
            .get(context.index)
            .cloned()
            .ok_or(DataError::IndexOutOfRange { index: context.index, len: self.items.len() })
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest {
            num_samples: self.items.len() as u64,
            class_names: self.class_names.clone(),
            content: self.content,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_past_the_end_is_an_error() {
        let dataset = InMemoryDataset::from(vec!["a", "b"]);
        let context = |index| SampleContext { seed: 0, epoch: 0, index };
        assert_eq!(dataset.get(&context(1)).unwrap(), "b");
        let error = dataset.get(&context(2)).unwrap_err();
        assert_eq!(error.to_string(), "sample 2 does not exist; the data set has 2 samples");
    }

    #[test]
    fn the_digest_tells_what_was_given() {
        let dataset = InMemoryDataset::new(vec![1, 2, 3])
            .with_class_names(vec!["odd".into(), "even".into()])
            .with_content(7);
        let digest = dataset.digest();
        assert_eq!((digest.num_samples, digest.content), (3, 7));
        assert_eq!(digest.class_names, ["odd", "even"]);
    }
}
