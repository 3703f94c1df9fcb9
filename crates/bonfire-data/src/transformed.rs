//! A data set seen through transforms.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::transform::Transforms;
use crate::{DataError, Dataset, DatasetDigest, ImageDataset, ImageSample, SampleContext, Skipped};

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

    /// Returns `[height, width, channels]` where all images have the same after the transforms.
    ///
    /// Where a crop or a resize fixes the size, no file is opened for it but that of one image, on which
    /// the transforms are checked.
    ///
    /// # Errors
    ///
    /// [`DataError::ImageSize`] when a transform cannot take that image, or images of the common size.
    pub fn output_shape(&self) -> Result<Option<[usize; 3]>, DataError> {
        let sides = |[height, width, _]: [usize; 3]| [height, width];
        if let Some(example) = self.images.example_shape() {
            self.transforms.output_size(Some(sides(example)))?;
        }
        let size = match self.transforms.output_size(None)? {
            Some(size) => Some(size),
            None => self.transforms.output_size(self.images.image_shape().map(sides))?,
        };
        Ok(size
            .zip(self.num_channels())
            .map(|([height, width], channels)| [height, width, channels]))
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
        self.output_shape().ok().flatten()
    }

    fn example_shape(&self) -> Option<[usize; 3]> {
        let [height, width, channels] = self.images.example_shape()?;
        let [height, width] = self.transforms.output_size(Some([height, width])).ok()??;
        Some([height, width, channels])
    }

    fn skipped(&self) -> Skipped {
        self.images.skipped()
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
