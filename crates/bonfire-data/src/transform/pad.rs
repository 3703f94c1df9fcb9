//! Borders around images.

use super::{Transform, check_result, fill_pixel, unsuitable_size};
use crate::{DataError, Image, RandomSource};

/// What borders consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PaddingMode {
    /// The fill value.
    #[default]
    Constant,
    /// The pixel at the edge: `a b c` becomes `a a a b c c c`.
    Edge,
    /// The mirror image without the edge itself: `a b c` becomes `c b a b c b a`.
    Reflect,
    /// The mirror image with the edge: `a b c` becomes `b a a b c c b`.
    Symmetric,
}

/// Adds a border.
///
/// # Reference
///
/// `torchvision.transforms.v2.Pad`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pad {
    /// Width of the border at the left, top, right and bottom, in pixels.
    pub padding: [usize; 4],
    /// Value of a constant border, for all channels or for each; default 0.
    pub fill: Vec<u8>,
    /// What the border consists of; default constant.
    pub mode: PaddingMode,
}

impl Pad {
    /// Makes a black border: left, top, right, bottom.
    pub fn new(padding: [usize; 4]) -> Self {
        Self { padding, fill: vec![0], mode: PaddingMode::Constant }
    }
}

impl Transform for Pad {
    fn apply(&self, image: Image, _: &mut RandomSource) -> Result<Image, DataError> {
        padded("Pad", image, self.padding, &self.fill, self.mode)
    }

    fn output_size(&self, input: Option<[usize; 2]>) -> Result<Option<[usize; 2]>, DataError> {
        input.map(|size| padded_size("Pad", size, self.padding, self.mode)).transpose()
    }
}

/// Adds a border (left, top, right, bottom), for a transform of that name.
pub(super) fn padded(
    transform: &'static str,
    image: Image,
    padding: [usize; 4],
    fill: &[u8],
    mode: PaddingMode,
) -> Result<Image, DataError> {
    if padding == [0; 4] {
        return Ok(image);
    }
    let [height, width, channels] = image.shape();
    let [left, top, right, bottom] = padding;
    let size = padded_size(transform, [height, width], padding, mode)?;
    check_result(transform, [height, width], size, channels)?;
    let (rows, columns) = (sources(top, height, bottom, mode), sources(left, width, right, mode));
    let fill = fill_pixel(transform, fill, &image)?;
    let mut pixels = Vec::with_capacity(rows.len() * columns.len() * channels);
    for row in &rows {
        let row = row.map(|row| &image.pixels()[row * width * channels..][..width * channels]);
        for column in &columns {
            pixels.extend_from_slice(match (row, column) {
                (Some(row), Some(column)) => &row[column * channels..][..channels],
                _ => &fill,
            });
        }
    }
    Image::new(pixels, [rows.len(), columns.len(), channels])
}

/// The size of an image with a border.
pub(super) fn padded_size(
    transform: &'static str,
    [height, width]: [usize; 2],
    [left, top, right, bottom]: [usize; 4],
    mode: PaddingMode,
) -> Result<[usize; 2], DataError> {
    for (before, length, after) in [(top, height, bottom), (left, width, right)] {
        // How far a mirror image reaches.
        let reach = match mode {
            PaddingMode::Constant | PaddingMode::Edge => usize::MAX,
            PaddingMode::Reflect => length.saturating_sub(1),
            PaddingMode::Symmetric => length,
        };
        if before.max(after) > reach {
            let rule =
                format!("a mirrored border of {before} and {after} pixels is too wide for it");
            return Err(unsuitable_size(transform, [height, width], rule));
        }
        if length == 0 && mode != PaddingMode::Constant && before.max(after) > 0 {
            let rule = "it has no edge that a border could repeat";
            return Err(unsuitable_size(transform, [height, width], rule));
        }
    }
    let sum =
        |parts: [usize; 3]| parts.iter().fold(0, |sum: usize, part| sum.saturating_add(*part));
    let size = [sum([top, height, bottom]), sum([left, width, right])];
    check_result(transform, [height, width], size, 1)?;
    Ok(size)
}

/// Which row (or column) of the source each one of the result shows; `None` for those that are filled. A
/// mirror must need no more of them than there are.
fn sources(before: usize, length: usize, after: usize, mode: PaddingMode) -> Vec<Option<usize>> {
    // Where a mirror image begins behind the edge.
    let skip = match mode {
        PaddingMode::Constant => return filled(before, length, after),
        PaddingMode::Edge | PaddingMode::Symmetric => 0,
        PaddingMode::Reflect => 1,
    };
    let edge = mode == PaddingMode::Edge;
    let first = (0..before).rev().map(|far| if edge { 0 } else { far + skip });
    let last = (0..after).map(|far| if edge { length - 1 } else { length - 1 - skip - far });
    first.chain(0..length).chain(last).map(Some).collect()
}

fn filled(before: usize, length: usize, after: usize) -> Vec<Option<usize>> {
    let border = |count| std::iter::repeat_n(None, count);
    border(before).chain((0..length).map(Some)).chain(border(after)).collect()
}
