//! Resizing, with a filter that widens as images shrink.

use fast_image_resize::images::{Image as Output, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::{Transform, check_result, unsuitable};
use crate::{DataError, Image, RandomSource};

/// Which size images are resized to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeTo {
    /// The shorter edge gets this length, the longer one `floor(length * longer / shorter)`.
    ShorterEdge(usize),
    /// `[height, width]`, whatever the aspect ratio was.
    Exact([usize; 2]),
}

/// Resizes by bilinear interpolation with antialiasing.
///
/// A pixel is the mean of its neighbourhood in the source, weighted by a triangle that is as wide as
/// two source pixels, or, when shrinking by a factor, as two times that many.
///
/// # Reference
///
/// `torchvision.transforms.v2.Resize` with its default `antialias=True`; the filter is Pillow's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// The size.
    pub size: ResizeTo,
}

impl Resize {
    fn target(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        match self.size {
            ResizeTo::Exact(size) => size,
            ResizeTo::ShorterEdge(length) if width <= height => {
                [longer(length, height, width), length]
            }
            ResizeTo::ShorterEdge(length) => [length, longer(length, width, height)],
        }
    }
}

impl Transform for Resize {
    fn apply(&self, image: Image, _: &mut RandomSource) -> Result<Image, DataError> {
        let size = self.target([image.height(), image.width()]);
        resized("Resize", image, size)
    }

    fn output_size(&self, input: Option<[usize; 2]>) -> Result<Option<[usize; 2]>, DataError> {
        let size = match self.size {
            ResizeTo::Exact(size) => Some(size),
            ResizeTo::ShorterEdge(_) => input.map(|size| self.target(size)),
        };
        if let Some(size) = size {
            check_result("Resize", input.unwrap_or(size), size, 1)?;
        }
        Ok(size)
    }
}

fn longer(shorter_becomes: usize, longer: usize, shorter: usize) -> usize {
    shorter_becomes.saturating_mul(longer) / shorter.max(1)
}

/// Resizes an image to `[height, width]`, for a transform of that name.
pub(super) fn resized(
    transform: &'static str,
    image: Image,
    [height, width]: [usize; 2],
) -> Result<Image, DataError> {
    if [height, width] == [image.height(), image.width()] {
        return Ok(image);
    }
    let channels = image.channels();
    check_result(transform, [image.height(), image.width()], [height, width], channels)?;
    let pixel = match channels {
        1 => PixelType::U8,
        2 => PixelType::U8x2,
        3 => PixelType::U8x3,
        4 => PixelType::U8x4,
        _ => return Err(unsuitable(transform, &image, "it resizes 1 to 4 channels")),
    };
    let failed = |reason: String| {
        let rule = format!("resizing it to {height} x {width} failed: {reason}");
        unsuitable(transform, &image, rule)
    };
    let edge = |length: usize| u32::try_from(length).map_err(|error| failed(error.to_string()));
    let (rows, columns) = (edge(image.height())?, edge(image.width())?);
    let source = ImageRef::new(columns, rows, image.pixels(), pixel)
        .map_err(|error| failed(error.to_string()))?;
    let mut output = Output::new(edge(width)?, edge(height)?, pixel);
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false);
    Resizer::new()
        .resize(&source, &mut output, &options)
        .map_err(|error| failed(error.to_string()))?;
    Image::new(output.into_vec(), [height, width, channels])
}
