//! Crops at the centre and at random places.

use super::pad::{padded, padded_size};
use super::{PaddingMode, Transform, unsuitable_size};
use crate::{DataError, Image, RandomSource};

/// Cuts out the middle; an image smaller than that gets a black border first.
///
/// The corner is `round((edge - crop) / 2)`, halves to the even number.
///
/// # Reference
///
/// `torchvision.transforms.v2.CenterCrop`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CenterCrop {
    /// `[height, width]` of the crop.
    pub size: [usize; 2],
}

impl Transform for CenterCrop {
    fn apply(&self, image: Image, _: &mut RandomSource) -> Result<Image, DataError> {
        let [height, width] = self.size;
        let missing = [height.saturating_sub(image.height()), width.saturating_sub(image.width())];
        let [top, left] = missing.map(|pixels| pixels / 2);
        let border = [left, top, missing[1] - left, missing[0] - top];
        let image = padded("CenterCrop", image, border, &[0], PaddingMode::Constant)?;
        let corner =
            |edge: usize, crop: usize| ((edge - crop) as f64 / 2.0).round_ties_even() as usize;
        let (top, left) = (corner(image.height(), height), corner(image.width(), width));
        cropped(image, [top, left], self.size)
    }

    fn output_size(&self, _: Option<[usize; 2]>) -> Result<Option<[usize; 2]>, DataError> {
        Ok(Some(self.size))
    }
}

/// Cuts out a piece at a place that is drawn uniformly, after adding a border.
///
/// # Reference
///
/// `torchvision.transforms.v2.RandomCrop`; He et al., "Deep Residual Learning for Image Recognition",
/// 2015, arXiv:1512.03385, section 4.2, uses it with 4 pixels of padding for CIFAR-10.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RandomCrop {
    /// `[height, width]` of the crop.
    pub size: [usize; 2],
    /// Border at the left, top, right and bottom, in pixels; default none.
    pub padding: [usize; 4],
    /// Whether an image smaller than the crop gets, at both sides, as many pixels as it lacks;
    /// default false, then it is an error.
    pub pad_if_needed: bool,
    /// Value of a constant border, for all channels or for each; default 0.
    pub fill: Vec<u8>,
    /// What the border consists of; default constant.
    pub padding_mode: PaddingMode,
}

impl RandomCrop {
    /// Makes a crop without a border.
    pub fn new(size: [usize; 2]) -> Self {
        Self {
            size,
            padding: [0; 4],
            pad_if_needed: false,
            fill: vec![0],
            padding_mode: PaddingMode::Constant,
        }
    }

    fn border(&self, [rows, columns]: [usize; 2]) -> [usize; 4] {
        let [mut left, mut top, mut right, mut bottom] = self.padding;
        if self.pad_if_needed {
            let [height, width] = self.size;
            let rows = height.saturating_sub(rows.saturating_add(top).saturating_add(bottom));
            let columns = width.saturating_sub(columns.saturating_add(left).saturating_add(right));
            (top, bottom) = (top + rows, bottom + rows);
            (left, right) = (left + columns, right + columns);
        }
        [left, top, right, bottom]
    }

    /// Checks that an image of this size, its border included, holds a crop.
    fn check(&self, [rows, columns]: [usize; 2]) -> Result<(), DataError> {
        let [height, width] = self.size;
        if rows >= height && columns >= width {
            return Ok(());
        }
        let rule = format!(
            "it is smaller than the crop of {height} x {width}; resize it before, or use \
             pad_if_needed"
        );
        Err(unsuitable_size("RandomCrop", [rows, columns], rule))
    }
}

impl Transform for RandomCrop {
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError> {
        let border = self.border([image.height(), image.width()]);
        let image = padded("RandomCrop", image, border, &self.fill, self.padding_mode)?;
        self.check([image.height(), image.width()])?;
        let [height, width] = self.size;
        let top = random.below(image.height() - height + 1);
        let left = random.below(image.width() - width + 1);
        cropped(image, [top, left], self.size)
    }

    fn output_size(&self, input: Option<[usize; 2]>) -> Result<Option<[usize; 2]>, DataError> {
        if let Some(input) = input {
            let size = padded_size("RandomCrop", input, self.border(input), self.padding_mode)?;
            self.check(size)?;
        }
        Ok(Some(self.size))
    }
}

/// Cuts out `[height, width]` from a corner `[top, left]` on; the piece must lie within the image.
pub(super) fn cropped(
    image: Image,
    [top, left]: [usize; 2],
    [height, width]: [usize; 2],
) -> Result<Image, DataError> {
    if [height, width] == [image.height(), image.width()] {
        return Ok(image);
    }
    let [_, columns, channels] = image.shape();
    let mut pixels = Vec::with_capacity(height * width * channels);
    for row in image.pixels().chunks_exact((columns * channels).max(1)).skip(top).take(height) {
        pixels.extend_from_slice(&row[left * channels..][..width * channels]);
    }
    Image::new(pixels, [height, width, channels])
}
