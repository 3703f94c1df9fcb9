//! Brightness, contrast, saturation and hue of images of bytes, grey or of red, green and blue.
//!
//! The arithmetic is that of torchvision's kernels for `uint8` tensors: in 32 bits, cut off (not
//! rounded) to bytes.

use super::unsuitable;
use crate::{DataError, Image};

/// Gives every byte its place in a table.
pub(super) fn looked_up(image: Image, table: &[u8; 256]) -> Result<Image, DataError> {
    let shape = image.shape();
    let mut pixels = image.into_vec();
    pixels.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
    Image::new(pixels, shape)
}

/// Makes the table of a function of bytes.
pub(super) fn table(f: impl Fn(u8) -> u8) -> [u8; 256] {
    std::array::from_fn(|byte| f(byte as u8))
}

/// Refuses images that are neither grey nor of red, green and blue.
pub(super) fn check_channels(transform: &'static str, image: &Image) -> Result<(), DataError> {
    match image.channels() {
        1 | 3 => Ok(()),
        _ => Err(unsuitable(transform, image, "it changes colours of 1 or 3 channels")),
    }
}

/// `factor * image`: black at 0, the image itself at 1.
///
/// # Reference
///
/// `torchvision.transforms.v2.functional.adjust_brightness`, as of the following functions.
pub(super) fn brightness(image: Image, factor: f64) -> Result<Image, DataError> {
    let factor = factor as f32;
    looked_up(image, &table(|byte| (f32::from(byte) * factor) as u8))
}

/// `factor * image + (1 - factor) * mean grey`.
pub(super) fn contrast(image: Image, factor: f64) -> Result<Image, DataError> {
    let mean = mean_grey(&image);
    let factor = factor as f32;
    looked_up(image, &table(|byte| blend(f32::from(byte), mean, factor)))
}

/// `factor * image + (1 - factor) * grey image`; a grey image stays as it is.
pub(super) fn saturation(image: Image, factor: f64) -> Result<Image, DataError> {
    let factor = factor as f32;
    each_rgb(image, |pixel| {
        let grey = grey(pixel);
        pixel.map(|byte| blend(f32::from(byte), grey, factor))
    })
}

/// Turns the hue by `factor` circles; a grey image stays as it is.
pub(super) fn hue(image: Image, factor: f64) -> Result<Image, DataError> {
    let factor = factor as f32;
    each_rgb(image, |pixel| {
        let [hue, saturation, value] = hsv(pixel.map(|byte| f32::from(byte) / 255.0));
        let turned = rgb([(hue + factor).rem_euclid(1.0), saturation, value]);
        // Just below 256, so that 1 becomes 255, and every byte covers as much.
        turned.map(|part| (part * 255.999) as u8)
    })
}

fn each_rgb(image: Image, f: impl Fn([u8; 3]) -> [u8; 3]) -> Result<Image, DataError> {
    if image.channels() != 3 {
        return Ok(image);
    }
    let shape = image.shape();
    let mut pixels = image.into_vec();
    for pixel in pixels.chunks_exact_mut(3) {
        pixel.copy_from_slice(&f([pixel[0], pixel[1], pixel[2]]));
    }
    Image::new(pixels, shape)
}

fn blend(byte: f32, other: f32, factor: f32) -> u8 {
    (byte * factor + other * (1.0 - factor)) as u8
}

/// Luma of ITU-R BT.601, cut off.
fn grey([red, green, blue]: [u8; 3]) -> f32 {
    (0.2989 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue)).floor()
}

fn mean_grey(image: &Image) -> f32 {
    let pixels = image.pixels();
    let sum: u64 = match image.channels() {
        3 => pixels.chunks_exact(3).map(|pixel| grey([pixel[0], pixel[1], pixel[2]]) as u64).sum(),
        _ => pixels.iter().map(|byte| u64::from(*byte)).sum(),
    };
    (sum as f64 / (image.height() * image.width()).max(1) as f64) as f32
}

/// Hue, saturation and value, each in 0..1, of red, green and blue.
fn hsv([red, green, blue]: [f32; 3]) -> [f32; 3] {
    let greatest = red.max(green).max(blue);
    let range = greatest - red.min(green).min(blue);
    if range == 0.0 {
        return [0.0, 0.0, greatest];
    }
    let [r, g, b] = [red, green, blue].map(|part| (greatest - part) / range);
    let sixths = if greatest == red {
        b - g
    } else if greatest == green {
        2.0 + r - b
    } else {
        4.0 + g - r
    };
    [(sixths / 6.0 + 1.0) % 1.0, range / greatest, greatest]
}

/// Red, green and blue of hue, saturation and value.
fn rgb([hue, saturation, value]: [f32; 3]) -> [f32; 3] {
    let sector = (hue * 6.0).floor();
    let within = hue * 6.0 - sector;
    let least = ((1.0 - saturation) * value).clamp(0.0, 1.0);
    let falling = ((1.0 - saturation * within) * value).clamp(0.0, 1.0);
    let rising = ((1.0 - saturation + saturation * within) * value).clamp(0.0, 1.0);
    match sector as i32 % 6 {
        0 => [value, rising, least],
        1 => [falling, value, least],
        2 => [least, value, rising],
        3 => [least, falling, value],
        4 => [rising, least, value],
        _ => [value, least, falling],
    }
}
