//! Transforms: what becomes of an image between the data set and the batch.
//!
//! A [`Transform`] is a pure function of an image and a generator that is seeded by the
//! [`SampleContext`] alone, so a sample looks the same on whichever rank and worker it is made, with
//! any world size, and in a resumed run. Images are bytes throughout; what normalises them comes
//! behind. Names, parameters, defaults and formulas are those of `torchvision.transforms.v2` for
//! `uint8` tensors; each transform names its class and its paper.
//!
//! [`BatchMix`] mixes the images of a batch.
//!
//! ```
//! use bonfire_data::transform::{RandomCrop, RandomHorizontalFlip, Transforms};
//! use bonfire_data::{DataError, Image, SampleContext};
//!
//! # fn main() -> Result<(), DataError> {
//! let transforms = Transforms::new()
//!     .with(RandomCrop { padding: [4; 4], ..RandomCrop::new([32, 32]) })
//!     .with(RandomHorizontalFlip::default());
//! let image = Image::new(vec![0; 32 * 32 * 3], [32, 32, 3])?;
//! let context = SampleContext { seed: 1, epoch: 0, index: 17 };
//! let augmented = transforms.apply(image.clone(), &context)?;
//! assert_eq!(augmented, transforms.apply(image, &context)?);
//! # Ok(())
//! # }
//! ```

mod affine;
mod augment;
mod color;
mod color_jitter;
mod crop;
mod erasing;
mod flip;
mod mix;
mod pad;
mod random_resized_crop;
mod resize;
mod rotation;
mod tone;

#[cfg(test)]
mod tests;

pub use affine::Interpolation;
pub use augment::{RandAugment, TrivialAugmentWide};
pub use color_jitter::ColorJitter;
pub use crop::{CenterCrop, RandomCrop};
pub use erasing::{Erasure, RandomErasing};
pub use flip::RandomHorizontalFlip;
pub use mix::{BatchMix, Mix};
pub use pad::{Pad, PaddingMode};
pub use random_resized_crop::RandomResizedCrop;
pub use resize::{Resize, ResizeTo};
pub use rotation::RandomRotation;

use std::fmt::Debug;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::decode::MAX_IMAGE_BYTES;
use crate::{DataError, Image, RandomSource, SampleContext};

/// Makes one image of another.
///
/// Its `Debug` text must tell all of its parameters and nothing else: data sets with the same
/// transforms are recognised by it.
pub trait Transform: Debug + Send + Sync {
    /// Transforms `image`; the result must depend on it and on what `random` gives only.
    ///
    /// # Errors
    ///
    /// [`DataError::Transform`] when the image's shape does not suit.
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError>;

    /// Returns `[height, width]` of what comes out for images of size `input`, where that is known
    /// without an image; `input` is `None` for images of different sizes.
    ///
    /// Without an implementation the size stays.
    ///
    /// # Errors
    ///
    /// [`DataError::ImageSize`] when no image of that size can be transformed, so that it is told before
    /// the first one is read.
    fn output_size(&self, input: Option<[usize; 2]>) -> Result<Option<[usize; 2]>, DataError> {
        Ok(input)
    }
}

/// Transforms one after the other, each with random numbers of its own.
#[derive(Debug, Clone, Default)]
pub struct Transforms {
    list: Vec<Arc<dyn Transform>>,
}

impl Transforms {
    /// Makes the list that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a transform behind those there are.
    #[must_use]
    pub fn with(mut self, transform: impl Transform + 'static) -> Self {
        self.list.push(Arc::new(transform));
        self
    }

    /// Adds a transform if there is one.
    #[must_use]
    pub fn with_some(self, transform: Option<impl Transform + 'static>) -> Self {
        match transform {
            Some(transform) => self.with(transform),
            None => self,
        }
    }

    /// Returns true when nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Transforms the image of one sample.
    ///
    /// # Errors
    ///
    /// That of the first transform that fails.
    pub fn apply(&self, image: Image, context: &SampleContext) -> Result<Image, DataError> {
        self.list.iter().enumerate().try_fold(image, |image, (position, transform)| {
            transform.apply(image, &mut RandomSource::for_sample(context, position))
        })
    }

    /// Returns `[height, width]` of what comes out for images of size `input`, where that is known.
    ///
    /// # Errors
    ///
    /// That of the first transform that cannot take such images.
    pub fn output_size(&self, input: Option<[usize; 2]>) -> Result<Option<[usize; 2]>, DataError> {
        self.list.iter().try_fold(input, |size, transform| transform.output_size(size))
    }

    /// Returns a hash of all transforms and their parameters.
    pub fn digest(&self) -> u64 {
        xxh3_64(format!("{:?}", self.list).as_bytes())
    }
}

/// Makes the error of a transform that cannot take an image.
fn unsuitable(transform: &'static str, image: &Image, rule: impl Into<String>) -> DataError {
    let [height, width, channels] = image.shape();
    DataError::Transform { transform, height, width, channels, rule: rule.into() }
}

/// Makes the error of a transform that can take no image of a size.
fn unsuitable_size(
    transform: &'static str,
    [height, width]: [usize; 2],
    rule: impl Into<String>,
) -> DataError {
    DataError::ImageSize { transform, height, width, rule: rule.into() }
}

/// Checks that what a transform makes of an image of size `from` is no larger than a decoded image may
/// be: a thin image whose shorter edge is enlarged would take more memory than there is.
fn check_result(
    transform: &'static str,
    from: [usize; 2],
    [height, width]: [usize; 2],
    channels: usize,
) -> Result<(), DataError> {
    let bytes = (height as u128) * (width as u128) * (channels as u128);
    if bytes <= u128::from(MAX_IMAGE_BYTES) {
        return Ok(());
    }
    let rule = format!(
        "it would become {height} x {width}, more than the {} MiB that an image may take",
        MAX_IMAGE_BYTES >> 20
    );
    Err(unsuitable_size(transform, from, rule))
}

/// Spreads one fill value, or one for each channel, over the channels of an image.
fn fill_pixel(transform: &'static str, fill: &[u8], image: &Image) -> Result<Vec<u8>, DataError> {
    match fill {
        [one] => Ok(vec![*one; image.channels()]),
        many if many.len() == image.channels() => Ok(many.to_vec()),
        many => {
            let rule = format!("fill has {} values, use one, or one for each channel", many.len());
            Err(unsuitable(transform, image, rule))
        }
    }
}
