//! What RandAugment does to tones: fewer bits, inverted lights, stretched and equalised histograms,
//! sharpness.

use super::color::{looked_up, table};
use crate::{DataError, Image};

/// Keeps the `bits` highest bits of every byte.
///
/// # Reference
///
/// `torchvision.transforms.v2.functional.posterize`, as of the following functions.
pub(super) fn posterize(image: Image, bits: u32) -> Result<Image, DataError> {
    let mask = 0xff_u8.checked_shl(8 - bits.min(8)).unwrap_or(0);
    looked_up(image, &table(|byte| byte & mask))
}

/// Inverts the bytes of at least `threshold`.
pub(super) fn solarize(image: Image, threshold: f64) -> Result<Image, DataError> {
    let threshold = threshold as f32;
    let invert = |byte: u8| if f32::from(byte) >= threshold { 255 - byte } else { byte };
    looked_up(image, &table(invert))
}

/// Stretches the bytes of each channel over 0 to 255.
pub(super) fn autocontrast(image: Image) -> Result<Image, DataError> {
    each_channel(image, |histogram| {
        let least = histogram.iter().position(|count| *count > 0)?;
        let greatest = histogram.iter().rposition(|count| *count > 0)?;
        if least == greatest {
            return None;
        }
        let scale = (greatest - least) as f32 * (1.0 / 255.0);
        Some(table(|byte| ((f32::from(byte) - least as f32) / scale) as u8))
    })
}

/// Spreads the bytes of each channel so that all are about as frequent.
///
/// `table[k] = (pixels below k + step / 2) / step`, in whole numbers, where `step` is a 255th of the
/// pixels that are not of the greatest value.
pub(super) fn equalize(image: Image) -> Result<Image, DataError> {
    each_channel(image, |histogram| {
        let total: usize = histogram.iter().sum();
        let of_greatest = histogram.iter().rev().find(|count| **count > 0)?;
        let step = (total - of_greatest) / 255;
        if step == 0 {
            return None;
        }
        let mut below = 0;
        Some(histogram.map(|count| {
            let value = ((below + step / 2) / step).min(255) as u8;
            below += count;
            value
        }))
    })
}

/// Looks the bytes of each channel up in a table made of the channel's histogram, if there is one.
fn each_channel(
    image: Image,
    make_table: impl Fn(&[usize; 256]) -> Option<[u8; 256]>,
) -> Result<Image, DataError> {
    let shape = image.shape();
    let channels = image.channels();
    let mut pixels = image.into_vec();
    for channel in 0..channels {
        let mut histogram = [0; 256];
        let bytes = pixels.iter().skip(channel).step_by(channels);
        bytes.for_each(|byte| histogram[usize::from(*byte)] += 1);
        let Some(table) = make_table(&histogram) else { continue };
        let bytes = pixels.iter_mut().skip(channel).step_by(channels);
        bytes.for_each(|byte| *byte = table[usize::from(*byte)]);
    }
    Image::new(pixels, shape)
}

/// `image + (1 - factor) * (smoothed image - image)`, but for the pixels of the edge.
///
/// The smoothed image is the mean over 3 x 3 pixels of which the one in the middle counts five times.
pub(super) fn sharpness(image: Image, factor: f64) -> Result<Image, DataError> {
    let [height, width, channels] = image.shape();
    if height <= 2 || width <= 2 {
        return Ok(image);
    }
    let factor = factor as f32;
    let stride = width * channels;
    let source = image.pixels();
    let mut pixels = source.to_vec();
    for row in 1..height - 1 {
        for place in row * stride + channels..(row + 1) * stride - channels {
            let around = [place - stride, place, place + stride].map(|middle| {
                [middle - channels, middle, middle + channels].map(|at| u16::from(source[at]))
            });
            let sum = around.iter().flatten().sum::<u16>() + 4 * u16::from(source[place]);
            let smooth = (f32::from(sum) / 13.0).round_ties_even();
            let byte = f32::from(source[place]);
            pixels[place] = (byte + (smooth - byte) * (1.0 - factor)) as u8;
        }
    }
    Image::new(pixels, image.shape())
}
