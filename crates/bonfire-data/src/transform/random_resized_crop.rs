//! The crop of Inception: a random part, resized.

use super::Transform;
use super::crop::cropped;
use super::resize::resized;
use crate::{DataError, Image, RandomSource};

/// Draws tried before the crop at the centre is taken.
const ATTEMPTS: usize = 10;

/// Cuts out a part of random area and aspect ratio and resizes it.
///
/// The area is uniform in `scale` times that of the image, the logarithm of the aspect ratio (width
/// over height) uniform between those of `ratio`, the place uniform. A part that does not fit is drawn
/// again; after ten of them the largest central part with an allowed ratio is taken.
///
/// # Reference
///
/// `torchvision.transforms.v2.RandomResizedCrop`; Szegedy et al., "Going Deeper with Convolutions",
/// 2014, arXiv:1409.4842, section 6.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomResizedCrop {
    /// `[height, width]` of the result.
    pub size: [usize; 2],
    /// Least and greatest share of the image's area; default `[0.08, 1]`.
    pub scale: [f64; 2],
    /// Least and greatest aspect ratio; default `[3/4, 4/3]`.
    pub ratio: [f64; 2],
}

/// A part of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) top: usize,
    pub(super) left: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl RandomResizedCrop {
    /// Makes a crop with the default ranges.
    pub fn new(size: [usize; 2]) -> Self {
        Self { size, scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }
    }

    /// Draws the part of an image of this size that is shown.
    pub(super) fn part(&self, [rows, columns]: [usize; 2], random: &mut RandomSource) -> Part {
        let area = (rows * columns) as f64;
        for _ in 0..ATTEMPTS {
            let target = area * random.uniform(self.scale[0], self.scale[1]);
            let ratio = random.uniform(self.ratio[0].ln(), self.ratio[1].ln()).exp();
            let width = (target * ratio).sqrt().round_ties_even() as usize;
            let height = (target / ratio).sqrt().round_ties_even() as usize;
            if (1..=columns).contains(&width) && (1..=rows).contains(&height) {
                let top = random.below(rows - height + 1);
                let left = random.below(columns - width + 1);
                return Part { top, left, height, width };
            }
        }
        self.central([rows, columns])
    }

    fn central(&self, [rows, columns]: [usize; 2]) -> Part {
        let ratio = columns as f64 / rows as f64;
        let [least, greatest] = self.ratio;
        let (height, width) = if ratio < least {
            (((columns as f64 / least).round_ties_even() as usize).min(rows), columns)
        } else if ratio > greatest {
            (rows, ((rows as f64 * greatest).round_ties_even() as usize).min(columns))
        } else {
            (rows, columns)
        };
        Part { top: (rows - height) / 2, left: (columns - width) / 2, height, width }
    }
}

impl Transform for RandomResizedCrop {
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError> {
        let Part { top, left, height, width } = self.part([image.height(), image.width()], random);
        let part = cropped(image, [top, left], [height, width])?;
        resized("RandomResizedCrop", part, self.size)
    }

    fn output_size(&self, _: Option<[usize; 2]>) -> Result<Option<[usize; 2]>, DataError> {
        Ok(Some(self.size))
    }
}
