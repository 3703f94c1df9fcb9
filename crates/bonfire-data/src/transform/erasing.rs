//! Random erasing.

use super::{Transform, fill_pixel, unsuitable};
use crate::{DataError, Image, RandomSource};

/// Draws tried before the image is left as it is.
const ATTEMPTS: usize = 10;

/// What an erased part consists of.
#[derive(Debug, Clone, PartialEq)]
pub enum Erasure {
    /// One value for all channels, or one for each.
    Fill(Vec<u8>),
    /// Every byte drawn from a normal distribution, in units of the 0..1 range; mean and standard
    /// deviation for all channels, or for each.
    Normal {
        /// Means.
        mean: Vec<f64>,
        /// Standard deviations.
        std: Vec<f64>,
    },
}

/// Erases a rectangle with a probability.
///
/// Its area is uniform in `scale` times that of the image, the logarithm of its aspect ratio (height
/// over width) uniform between those of `ratio`, its place uniform. One that does not fit is drawn
/// again; after ten of them nothing is erased.
///
/// torchvision erases after normalisation, this before: there 0 is the mean, so fill with the mean
/// that normalisation takes away, and `"random"` is the normal distribution with its mean and
/// deviation, but for the rounding to bytes.
///
/// # Reference
///
/// `torchvision.transforms.v2.RandomErasing`; Zhong et al., "Random Erasing Data Augmentation", 2017,
/// arXiv:1708.04896.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomErasing {
    /// The probability; default 0.5.
    pub p: f64,
    /// Least and greatest share of the image's area; default `[0.02, 0.33]`.
    pub scale: [f64; 2],
    /// Least and greatest aspect ratio; default `[0.3, 3.3]`.
    pub ratio: [f64; 2],
    /// What the part consists of; default 0.
    pub value: Erasure,
}

impl Default for RandomErasing {
    fn default() -> Self {
        Self { p: 0.5, scale: [0.02, 0.33], ratio: [0.3, 3.3], value: Erasure::Fill(vec![0]) }
    }
}

/// Writes over the bytes of a pixel.
type Writer<'a> = Box<dyn FnMut(&mut [u8]) + 'a>;

/// A rectangle: top, left, height, width.
type Rectangle = [usize; 4];

impl RandomErasing {
    fn rectangle(&self, image: &Image, random: &mut RandomSource) -> Option<Rectangle> {
        let (rows, columns) = (image.height(), image.width());
        let area = (rows * columns) as f64;
        (0..ATTEMPTS).find_map(|_| {
            let erased = area * random.uniform(self.scale[0], self.scale[1]);
            let ratio = random.uniform(self.ratio[0].ln(), self.ratio[1].ln()).exp();
            let height = (erased * ratio).sqrt().round_ties_even() as usize;
            let width = (erased / ratio).sqrt().round_ties_even() as usize;
            (height < rows && width < columns).then(|| {
                let top = random.below(rows - height + 1);
                let left = random.below(columns - width + 1);
                [top, left, height, width]
            })
        })
    }

    /// Makes what writes over the bytes of one pixel after the other.
    fn writer<'a>(
        &'a self,
        image: &Image,
        random: &'a mut RandomSource,
    ) -> Result<Writer<'a>, DataError> {
        match &self.value {
            Erasure::Fill(fill) => {
                let fill = fill_pixel("RandomErasing", fill, image)?;
                Ok(Box::new(move |pixel| pixel.copy_from_slice(&fill)))
            }
            Erasure::Normal { mean, std } => {
                let mean = of_channels(mean, image)?;
                let std = of_channels(std, image)?;
                Ok(Box::new(move |pixel| {
                    for (byte, (mean, std)) in pixel.iter_mut().zip(mean.iter().zip(&std)) {
                        *byte = (255.0 * (mean + std * random.normal())).round() as u8;
                    }
                }))
            }
        }
    }
}

impl Transform for RandomErasing {
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError> {
        if !random.chance(self.p) {
            return Ok(image);
        }
        let Some([top, left, height, width]) = self.rectangle(&image, random) else {
            return Ok(image);
        };
        let mut write = self.writer(&image, random)?;
        let [rows, columns, channels] = image.shape();
        let mut pixels = image.into_vec();
        for row in pixels.chunks_exact_mut((columns * channels).max(1)).skip(top).take(height) {
            let part = &mut row[left * channels..][..width * channels];
            part.chunks_exact_mut(channels).for_each(&mut write);
        }
        Image::new(pixels, [rows, columns, channels])
    }
}

fn of_channels(values: &[f64], image: &Image) -> Result<Vec<f64>, DataError> {
    match values {
        [one] => Ok(vec![*one; image.channels()]),
        many if many.len() == image.channels() => Ok(many.to_vec()),
        many => {
            let rule = format!("value has {} means or deviations, not one a channel", many.len());
            Err(unsuitable("RandomErasing", image, rule))
        }
    }
}
