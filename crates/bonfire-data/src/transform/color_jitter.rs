//! Random changes of colours.

use super::Transform;
use super::color::{brightness, check_channels, contrast, hue, saturation};
use crate::{DataError, Image, RandomSource};

/// Changes brightness, contrast, saturation and hue, in random order, by factors that are drawn
/// uniformly; a range that is `None` leaves that property alone. Grey images have neither saturation
/// nor hue.
///
/// # Reference
///
/// `torchvision.transforms.v2.ColorJitter`; Howard, "Some Improvements on Deep Convolutional Neural
/// Network Based Image Classification", 2013, arXiv:1312.5402, section 2.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ColorJitter {
    /// Least and greatest factor, 0 or more; 1 changes nothing.
    pub brightness: Option<[f64; 2]>,
    /// Least and greatest factor, 0 or more; 1 changes nothing.
    pub contrast: Option<[f64; 2]>,
    /// Least and greatest factor, 0 or more; 1 changes nothing.
    pub saturation: Option<[f64; 2]>,
    /// Least and greatest turn in circles, within -0.5 and 0.5; 0 changes nothing.
    pub hue: Option<[f64; 2]>,
}

/// A property of colours with the function that changes it.
type Adjust = fn(Image, f64) -> Result<Image, DataError>;

impl ColorJitter {
    /// Makes the jitter of factors in `[max(0, 1 - strength), 1 + strength]`, and of turns in
    /// `[-strength, strength]` for the hue.
    pub fn new(brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Self {
        Self {
            brightness: Self::around_one(brightness),
            contrast: Self::around_one(contrast),
            saturation: Self::around_one(saturation),
            hue: (hue != 0.0).then_some([-hue, hue]),
        }
    }

    /// Returns the factors of a strength; none for 0.
    pub fn around_one(strength: f64) -> Option<[f64; 2]> {
        (strength != 0.0).then_some([(1.0 - strength).max(0.0), 1.0 + strength])
    }
}

impl Transform for ColorJitter {
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError> {
        check_channels("ColorJitter", &image)?;
        let mut steps: [(Option<[f64; 2]>, Adjust); 4] = [
            (self.brightness, brightness),
            (self.contrast, contrast),
            (self.saturation, saturation),
            (self.hue, hue),
        ];
        for last in (1..steps.len()).rev() {
            steps.swap(last, random.below(last + 1));
        }
        steps.into_iter().try_fold(image, |image, (range, adjust)| match range {
            Some([least, greatest]) => adjust(image, random.uniform(least, greatest)),
            None => Ok(image),
        })
    }
}
