//! Affine maps: rotations, shears and shifts.

use super::fill_pixel;
use crate::{DataError, Image};

/// How a pixel between pixels is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interpolation {
    /// The nearest one; of two as near the one with the even row or column.
    #[default]
    Nearest,
    /// A weighted mean of the four around.
    Bilinear,
}

/// A map from places in the result to places in the source, both measured in pixels from the middle
/// of the image: `x' = a x + b y + c`, `y' = d x + e y + f` for `[a, b, c, d, e, f]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine([f32; 6]);

impl Affine {
    /// Rotates by an angle in degrees, counter-clockwise.
    pub(super) fn rotation(degrees: f64) -> Self {
        let (sin, cos) = degrees.to_radians().sin_cos();
        let (sin, cos) = (sin as f32, cos as f32);
        Self([cos, -sin, 0.0, sin, cos, 0.0])
    }

    /// Shifts by whole pixels, to the right and down.
    pub(super) fn translation(right: f64, down: f64) -> Self {
        Self([1.0, 0.0, -right as f32, 0.0, 1.0, -down as f32])
    }

    /// Moves each row, by `shear` pixels for every row below the top edge, to the left.
    pub(super) fn shear_x(shear: f64, height: usize) -> Self {
        Self([1.0, shear as f32, (shear * height as f64 / 2.0) as f32, 0.0, 1.0, 0.0])
    }

    /// Moves each column, by `shear` pixels for every column right of the left edge, up.
    pub(super) fn shear_y(shear: f64, width: usize) -> Self {
        Self([1.0, 0.0, 0.0, shear as f32, 1.0, (shear * width as f64 / 2.0) as f32])
    }

    /// Where in the source a pixel of the result lies, as column and row; for an image of this size.
    fn source(&self, row: usize, column: usize, [height, width]: [usize; 2]) -> (f32, f32) {
        let [a, b, c, d, e, f] = self.0;
        let (middle_x, middle_y) = ((width as f32 - 1.0) / 2.0, (height as f32 - 1.0) / 2.0);
        let (x, y) = (column as f32 - middle_x, row as f32 - middle_y);
        (a * x + b * y + c + middle_x, d * x + e * y + f + middle_y)
    }
}

/// Maps an image to one of the same size; what lies outside is `fill`, for a transform of that name.
///
/// # Reference
///
/// `torchvision.transforms.v2.functional.affine` and `rotate`, `expand=False`.
pub(super) fn mapped(
    transform: &'static str,
    image: &Image,
    map: Affine,
    interpolation: Interpolation,
    fill: &[u8],
) -> Result<Image, DataError> {
    let [height, width, channels] = image.shape();
    let fill = fill_pixel(transform, fill, image)?;
    let source = Source { image, fill: &fill };
    let mut pixels = Vec::with_capacity(image.pixels().len());
    for row in 0..height {
        for column in 0..width {
            let (x, y) = map.source(row, column, [height, width]);
            match interpolation {
                Interpolation::Nearest => {
                    let place = (x.round_ties_even() as i64, y.round_ties_even() as i64);
                    pixels.extend_from_slice(source.pixel(place));
                }
                Interpolation::Bilinear => source.blend((x, y), &mut pixels),
            }
        }
    }
    Image::new(pixels, [height, width, channels])
}

/// An image that goes on for ever.
struct Source<'a> {
    image: &'a Image,
    fill: &'a [u8],
}

impl Source<'_> {
    fn pixel(&self, (column, row): (i64, i64)) -> &[u8] {
        let [height, width, channels] = self.image.shape();
        let within =
            |place: i64, length: usize| usize::try_from(place).ok().filter(|place| *place < length);
        match (within(row, height), within(column, width)) {
            (Some(row), Some(column)) => {
                &self.image.pixels()[(row * width + column) * channels..][..channels]
            }
            _ => self.fill,
        }
    }

    fn blend(&self, (x, y): (f32, f32), pixels: &mut Vec<u8>) {
        let (left, top) = (x.floor(), y.floor());
        let (right_share, lower_share) = (x - left, y - top);
        let (left, top) = (left as i64, top as i64);
        let corners = [
            (self.pixel((left, top)), (1.0 - right_share) * (1.0 - lower_share)),
            (self.pixel((left + 1, top)), right_share * (1.0 - lower_share)),
            (self.pixel((left, top + 1)), (1.0 - right_share) * lower_share),
            (self.pixel((left + 1, top + 1)), right_share * lower_share),
        ];
        pixels.extend((0..self.image.channels()).map(|channel| {
            let sum: f32 =
                corners.iter().map(|(pixel, share)| f32::from(pixel[channel]) * share).sum();
            sum.round_ties_even() as u8
        }));
    }
}
