//! From the bytes of a PNG, JPEG or WebP file to an [`Image`] of one or three channels.

use std::io::{BufRead, Cursor, Seek};

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use crate::Image;

/// The suffixes of images, in lower case; files may have them in upper case.
pub const IMAGE_SUFFIXES: [&str; 4] = ["png", "jpg", "jpeg", "webp"];

/// Most memory that one image may take, as decoded or made by a transform, in bytes.
pub(crate) const MAX_IMAGE_BYTES: u64 = 1 << 30;

/// How many channels decoded images have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Channels {
    /// One; coloured images become grey by ITU-R 601-2 luma, as Pillow's `convert("L")`.
    Grey,
    /// Red, green and blue; grey images get three equal ones, as Pillow's `convert("RGB")`.
    #[default]
    Rgb,
}

impl Channels {
    /// Returns the number of channels, 1 or 3.
    pub fn count(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
        }
    }
}

/// Decodes an image, turned upright as its EXIF data say.
///
/// Palettes are resolved, alpha is dropped, 16 bits become 8 by the nearest value. The format is told
/// by the contents, whatever the name says. CMYK and YCCK JPEGs with Adobe's marker become RGB as by
/// Pillow's `convert("RGB")`: each ink takes away its share of what black leaves.
///
/// # Errors
/// A reason in words, when the file is of no known format, ends early, is CMYK without Adobe's marker, or
/// is broken.
pub fn decode(bytes: &[u8], channels: Channels) -> Result<Image, String> {
    let reader = reader(Cursor::new(bytes))?;
    if reader.format() == Some(ImageFormat::Jpeg) {
        check_jpeg(bytes)?;
    }
    let mut decoder = reader.into_decoder().map_err(in_words)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_IMAGE_BYTES);
    limits.reserve(decoder.total_bytes()).map_err(in_words)?;
    decoder.set_limits(limits).map_err(in_words)?;
    let orientation = decoder.orientation().map_err(in_words)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(in_words)?;
    image.apply_orientation(orientation);
    let (height, width) = (image.height() as usize, image.width() as usize);
    let pixels = match channels {
        Channels::Rgb => image.into_rgb8().into_raw(),
        Channels::Grey => grey(image),
    };
    Image::new(pixels, [height, width, channels.count()]).map_err(|error| error.to_string())
}

/// Reads height and width of an upright image from the beginning of a file.
pub(crate) fn size(source: impl BufRead + Seek) -> Result<[usize; 2], String> {
    let mut decoder = reader(source)?.into_decoder().map_err(in_words)?;
    let (width, height) = decoder.dimensions();
    let size = [height as usize, width as usize];
    Ok(match decoder.orientation().map_err(in_words)? {
        Orientation::Rotate90
        | Orientation::Rotate270
        | Orientation::Rotate90FlipH
        | Orientation::Rotate270FlipH => [size[1], size[0]],
        _ => size,
    })
}

fn reader<R: BufRead + Seek>(source: R) -> Result<ImageReader<R>, String> {
    let reader =
        ImageReader::new(source).with_guessed_format().map_err(|error| error.to_string())?;
    match reader.format() {
        Some(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP) => Ok(reader),
        _ => Err("not a PNG, JPEG or WebP file".into()),
    }
}

/// Grey values; those of coloured images in Pillow's fixed-point arithmetic.
fn grey(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_color() {
        return image.into_luma8().into_raw();
    }
    let luma = |pixel: &[u8]| {
        let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(u32::from);
        ((red * 19_595 + green * 38_470 + blue * 7_471 + 0x8000) >> 16) as u8
    };
    image.into_rgb8().chunks_exact(3).map(luma).collect()
}

/// Refuses what the decoder would take and return wrong: files that end early, whose rest it fills
/// with grey, and four inks without Adobe's marker. With it they are stored inverted, as the decoder
/// takes them and as Pillow does; without it nobody can know.
fn check_jpeg(bytes: &[u8]) -> Result<(), String> {
    const START_OF_SCAN: u8 = 0xda;
    const ADOBE: u8 = 0xee;
    const END_OF_IMAGE: [u8; 2] = [0xff, 0xd9];
    let mut rest = bytes.get(2..).unwrap_or_default();
    let mut inks_are_known = false;
    loop {
        let (marker, segment) = match *rest {
            // Fill bytes may stand before a marker.
            [0xff, 0xff, ..] => {
                rest = &rest[1..];
                continue;
            }
            [0xff, marker, high, low, ..] => (marker, usize::from(u16::from_be_bytes([high, low]))),
            _ => return Err("the JPEG header is broken or ends early".into()),
        };
        let after = match rest.get(2 + segment..) {
            Some(after) if segment >= 2 => after,
            _ => return Err("the file ends within its header".into()),
        };
        if marker == START_OF_SCAN {
            let ends = after.windows(2).rev().any(|pair| pair == END_OF_IMAGE);
            return if ends { Ok(()) } else { Err("the file ends early (truncated JPEG)".into()) };
        }
        inks_are_known |= marker == ADOBE && names_inks(&rest[4..2 + segment]);
        // A frame: length, precision, height, width, number of components.
        let frame = matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc);
        if frame && rest.get(9) == Some(&4) && !inks_are_known {
            let reason = "the image is CMYK (4 inks) without Adobe's marker, which says how inks are \
                          stored; convert it to RGB";
            return Err(reason.into());
        }
        rest = after;
    }
}

/// Whether a segment is Adobe's and says that four components are CMYK (0) or YCCK (2): name, version,
/// two times flags, transform.
fn names_inks(segment: &[u8]) -> bool {
    segment.starts_with(b"Adobe") && matches!(segment.get(11), Some(0 | 2))
}

fn in_words(error: ImageError) -> String {
    match error {
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the file ends early".into()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
