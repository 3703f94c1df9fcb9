//! A data set held in memory.

use xxhash_rust::xxh3::Xxh3;

use crate::{DataError, Dataset, DatasetDigest, ImageDataset, ImageSample, SampleContext};

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

impl InMemoryDataset<ImageSample> {
    /// Makes a data set of images, in this order, whose digest covers shapes, pixels and labels.
    pub fn of_images(samples: Vec<ImageSample>) -> Self {
        let mut hash = Xxh3::new();
        for sample in &samples {
            let shape = sample.image.shape().map(|length| length as u64);
            shape.iter().for_each(|length| hash.update(&length.to_le_bytes()));
            hash.update(sample.image.pixels());
            hash.update(&sample.label.to_le_bytes());
        }
        Self::new(samples).with_content(hash.digest())
    }
}

impl ImageDataset for InMemoryDataset<ImageSample> {
    fn image_shape(&self) -> Option<[usize; 3]> {
        let mut shapes = self.items.iter().map(|sample| sample.image.shape());
        let first = shapes.next()?;
        shapes.all(|shape| shape == first).then_some(first)
    }

    /// Returns the number of class names, or one more than the highest label if that is more.
    fn num_classes(&self) -> usize {
        let highest = self.items.iter().map(|sample| sample.label as usize + 1).max();
        self.class_names.len().max(highest.unwrap_or(0))
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
    use crate::Image;

    #[test]
    fn an_index_past_the_end_is_an_error() {
        let dataset = InMemoryDataset::from(vec!["a", "b"]);
        let context = |index| SampleContext { seed: 0, epoch: 0, index };
        assert_eq!(dataset.get(&context(1)).unwrap(), "b");
        let error = dataset.get(&context(2)).unwrap_err();
        assert_eq!(error.to_string(), "sample 2 does not exist; the data set has 2 samples");
    }

    #[test]
    fn images_have_a_shape_classes_and_a_digest() {
        let sample = |pixels: Vec<u8>, label| {
            let width = pixels.len();
            ImageSample { image: Image::new(pixels, [1, width, 1]).unwrap(), label }
        };
        let of_images = InMemoryDataset::of_images;
        let data = of_images(vec![sample(vec![1, 2], 0), sample(vec![3, 4], 4)]);
        assert_eq!((data.image_shape(), data.num_classes()), (Some([1, 2, 1]), 5));
        let other = of_images(vec![sample(vec![1, 2], 0), sample(vec![3, 5], 4)]);
        assert_ne!(data.digest().content, other.digest().content);
        let mixed = of_images(vec![sample(vec![1, 2], 0), sample(vec![3], 1)]);
        assert_eq!(mixed.image_shape(), None);
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
