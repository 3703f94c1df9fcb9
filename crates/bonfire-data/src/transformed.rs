//! A data set seen through transforms.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::transform::Transforms;
use crate::{DataError, Dataset, DatasetDigest, ImageDataset, ImageSample, SampleContext};

/// Transforms the images of a data set as they are read, on the thread that reads them.
///
/// An image's random numbers depend on its [`SampleContext`] alone.
#[derive(Debug, Clone)]
pub struct Transformed<D: ?Sized> {
    images: Arc<D>,
    transforms: Transforms,
}

impl<D: ImageDataset + ?Sized> Transformed<D> {
    /// Makes the data set of `images` after `transforms`.
    pub fn new(images: Arc<D>, transforms: Transforms) -> Self {
        Self { images, transforms }
    }

    /// Returns the data set behind.
    pub fn images(&self) -> &D {
        &self.images
    }
}

impl<D: ImageDataset + ?Sized> Dataset for Transformed<D> {
    type Item = ImageSample;

    fn len(&self) -> usize {
        self.images.len()
    }

    fn get(&self, context: &SampleContext) -> Result<ImageSample, DataError> {
        let ImageSample { image, label } = self.images.get(context)?;
        Ok(ImageSample { image: self.transforms.apply(image, context)?, label })
    }

    /// That of the data set behind, its content hashed together with the transforms.
    fn digest(&self) -> DatasetDigest {
        let digest = self.images.digest();
        if self.transforms.is_empty() {
            return digest;
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&digest.content.to_le_bytes());
        bytes[8..].copy_from_slice(&self.transforms.digest().to_le_bytes());
        DatasetDigest { content: xxh3_64(&bytes), ..digest }
    }
}

impl<D: ImageDataset + ?Sized> ImageDataset for Transformed<D> {
    fn image_shape(&self) -> Option<[usize; 3]> {
        let size = self.images.image_shape().map(|[height, width, _]| [height, width]);
        let [height, width] = self.transforms.output_size(size)?;
        Some([height, width, self.num_channels()?])
    }

    fn num_channels(&self) -> Option<usize> {
        self.images.num_channels()
    }

    fn num_classes(&self) -> usize {
        self.images.num_classes()
    }
}

#[cfg(test)]
mod tests;
