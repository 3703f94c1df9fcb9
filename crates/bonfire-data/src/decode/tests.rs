use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, GrayImage, ImageEncoder, ImageFormat, Rgb, RgbImage, RgbaImage};

use super::*;

fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Two rows, three columns.
fn rgb() -> RgbImage {
    RgbImage::from_fn(3, 2, |x, y| Rgb([(x * 80) as u8, (y * 200) as u8, 33]))
}

fn jpeg_with_orientation(orientation: u8) -> Vec<u8> {
    let tiff =
        [b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", &[orientation, 0, 0, 0][..]].concat();
    let mut bytes = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 100);
    encoder.set_exif_metadata([&tiff[..], &[0; 4]].concat()).unwrap();
    // Dark on the left, bright on the right.
    let image = GrayImage::from_fn(32, 16, |x, _| image::Luma([if x < 16 { 0 } else { 255 }]));
    encoder.encode(image.as_raw(), 32, 16, ExtendedColorType::L8).unwrap();
    bytes
}

#[test]
fn lossless_formats_give_the_pixels_that_were_written() {
    for format in [ImageFormat::Png, ImageFormat::WebP] {
        let image = decode(&encoded(rgb(), format), Channels::Rgb).unwrap();
        assert_eq!(image.shape(), [2, 3, 3], "{format:?}");
        assert_eq!(image.pixels(), rgb().as_raw(), "{format:?}");
    }
    let grey = GrayImage::from_raw(2, 1, vec![7, 200]).unwrap();
    let bytes = encoded(grey, ImageFormat::Png);
    assert_eq!(decode(&bytes, Channels::Grey).unwrap().pixels(), [7, 200]);
    assert_eq!(decode(&bytes, Channels::Rgb).unwrap().pixels(), [7, 7, 7, 200, 200, 200]);
}

#[test]
fn colours_become_grey_as_in_pillow() {
    // What Pillow makes of Image.new("RGB", (1, 1), colour).convert("L").
    for (colour, grey) in
        [([255, 0, 0], 76), ([0, 255, 0], 150), ([0, 0, 255], 29), ([255, 255, 255], 255)]
    {
        let bytes = encoded(RgbImage::from_pixel(1, 1, Rgb(colour)), ImageFormat::Png);
        assert_eq!(decode(&bytes, Channels::Grey).unwrap().pixels(), [grey], "{colour:?}");
    }
}

#[test]
fn alpha_is_dropped_and_sixteen_bits_are_rounded() {
    let image = RgbaImage::from_raw(1, 1, vec![10, 20, 30, 0]).unwrap();
    let decoded = decode(&encoded(image, ImageFormat::Png), Channels::Rgb).unwrap();
    assert_eq!(decoded.pixels(), [10, 20, 30]);
    // 257 units of 16 bits are one of 8 bits.
    let deep = image::ImageBuffer::<image::Luma<u16>, _>::from_raw(3, 1, vec![0, 300, 65_535]);
    let bytes = encoded(DynamicImage::ImageLuma16(deep.unwrap()), ImageFormat::Png);
    assert_eq!(decode(&bytes, Channels::Grey).unwrap().pixels(), [0, 1, 255]);
}

#[test]
fn palettes_are_resolved() {
    // One row of indices 1, 0 into the palette red, blue; stored, not compressed.
    let chunk = |kind: &[u8], data: &[u8]| {
        let body = [kind, data].concat();
        let mut hash = flate2::Crc::new();
        hash.update(&body);
        let length = (data.len() as u32).to_be_bytes();
        [&length[..], &body, &hash.sum().to_be_bytes()].concat()
    };
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::none());
    std::io::Write::write_all(&mut zlib, &[0, 1, 0]).unwrap();
    let bytes = [
        b"\x89PNG\r\n\x1a\n".to_vec(),
        chunk(b"IHDR", &[0, 0, 0, 2, 0, 0, 0, 1, 8, 3, 0, 0, 0]),
        chunk(b"PLTE", &[255, 0, 0, 0, 0, 255]),
        chunk(b"IDAT", &zlib.finish().unwrap()),
        chunk(b"IEND", &[]),
    ]
    .concat();
    assert_eq!(decode(&bytes, Channels::Rgb).unwrap().pixels(), [0, 0, 255, 255, 0, 0]);
    assert_eq!(decode(&bytes, Channels::Grey).unwrap().pixels(), [29, 76]);
}

#[test]
fn exif_turns_images_upright() {
    // Where the bright half is, by the corner pixels: top left and bottom right.
    for (orientation, size, [first, last]) in [
        (1, [16, 32], [0, 255]),
        (3, [16, 32], [255, 0]),
        (6, [32, 16], [0, 255]),
        (8, [32, 16], [255, 0]),
    ] {
        let bytes = jpeg_with_orientation(orientation);
        assert_eq!(super::size(Cursor::new(&bytes)).unwrap(), size);
        let image = decode(&bytes, Channels::Grey).unwrap();
        assert_eq!([image.height(), image.width()], size, "orientation {orientation}");
        let (pixels, end) = (image.pixels(), image.pixels().len() - 1);
        assert!(pixels[0].abs_diff(first) < 10, "orientation {orientation}");
        assert!(pixels[end].abs_diff(last) < 10, "orientation {orientation}");
    }
}

#[test]
fn what_is_no_image_or_ends_early_is_an_error() {
    for bytes in [&b""[..], b"text", b"GIF89a", b"BM12"] {
        assert_eq!(decode(bytes, Channels::Rgb).unwrap_err(), "not a PNG, JPEG or WebP file");
    }
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP] {
        let image = RgbImage::from_fn(64, 64, |x, y| Rgb([(x * y) as u8, x as u8, (y * 3) as u8]));
        let bytes = encoded(image, format);
        for keep in [bytes.len() / 2, bytes.len() - 20, 30, 12] {
            let result = decode(&bytes[..keep], Channels::Rgb);
            assert!(result.is_err(), "{keep} of {} bytes of {format:?}", bytes.len());
        }
    }
}

#[test]
fn broken_bytes_never_panic() {
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP] {
        let bytes = encoded(rgb(), format);
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0xff;
            let _ = decode(&broken, Channels::Grey);
            let _ = super::size(Cursor::new(&broken));
        }
    }
}

/// Made by `tests/golden/cmyk.py`: four inks, and what Pillow makes of them.
#[test]
fn four_inks_become_the_colours_of_pillow() {
    let golden: [(&str, &[u8], &[u8]); 2] = [
        (
            "CMYK",
            include_bytes!("../../../../tests/golden/cmyk.jpg"),
            include_bytes!("../../../../tests/golden/cmyk.rgb"),
        ),
        (
            "YCCK",
            include_bytes!("../../../../tests/golden/ycck.jpg"),
            include_bytes!("../../../../tests/golden/ycck.rgb"),
        ),
    ];
    for (name, file, expected) in golden {
        let image = decode(file, Channels::Rgb).unwrap();
        assert_eq!(image.shape(), [24, 40, 3], "{name}");
        let pairs = image.pixels().iter().zip(expected);
        let most = pairs.map(|(found, expected)| found.abs_diff(*expected)).max();
        // Two inverse cosine transforms and conversions round differently.
        assert!(most <= Some(3), "{name}: {most:?}");
        let grey = decode(file, Channels::Grey).unwrap();
        assert_eq!(grey.shape(), [24, 40, 1], "{name}");
    }
}

#[test]
fn four_inks_without_the_marker_that_tells_of_them_are_refused() {
    let file = include_bytes!("../../../../tests/golden/cmyk.jpg");
    let adobe = file.windows(5).position(|name| name == b"Adobe").unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = file.to_vec();
        bytes[adobe + at] = byte;
        decode(&bytes, Channels::Rgb)
    };
    assert!(with(0, b'A').is_ok());
    for (at, byte) in [(0, b'X'), (11, 1)] {
        let reason = with(at, byte).unwrap_err();
        assert!(reason.contains("without Adobe's marker"), "{reason}");
    }
}

#[test]
fn a_promise_of_more_pixels_than_memory_is_refused() {
    let mut bytes = encoded(rgb(), ImageFormat::Png);
    bytes[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let mut hash = flate2::Crc::new();
    hash.update(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&hash.sum().to_be_bytes());
    let error = decode(&bytes, Channels::Rgb).unwrap_err();
    assert!(error.to_lowercase().contains("limit"), "{error}");
}
