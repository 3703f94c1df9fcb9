//! Mirror images.

use super::Transform;
use crate::{DataError, Image, RandomSource};

/// Exchanges left and right with a probability.
///
/// # Reference
///
/// `torchvision.transforms.v2.RandomHorizontalFlip`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomHorizontalFlip {
    /// The probability; default 0.5.
    pub p: f64,
}

impl Default for RandomHorizontalFlip {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Transform for RandomHorizontalFlip {
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError> {
        match random.chance(self.p) {
            true => flipped(image),
            false => Ok(image),
        }
    }
}

/// Exchanges left and right.
pub(super) fn flipped(image: Image) -> Result<Image, DataError> {
    let [height, width, channels] = image.shape();
    let mut pixels = Vec::with_capacity(image.pixels().len());
    for row in image.pixels().chunks_exact((width * channels).max(1)) {
        row.rchunks_exact(channels).for_each(|pixel| pixels.extend_from_slice(pixel));
    }
    Image::new(pixels, [height, width, channels])
}
