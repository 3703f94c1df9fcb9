//! Images in folders, made by a test.

use image::{Rgb, RgbImage};
use std::fs;
use std::path::Path;

/// Bytes of a record of CIFAR-10.
pub const CIFAR_RECORD: usize = 3073;

/// Writes an image whose colour tells its class: reddish for 0, bluish for others.
pub fn write(path: &Path, [width, height]: [u32; 2], class: u32, number: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let image = RgbImage::from_fn(width, height, |x, y| {
        let noise = ((x * 31 + y * 17 + number * 13) % 60) as u8;
        if class == 0 {
            Rgb([200 + noise % 50, noise, 40])
        } else {
            Rgb([40, noise, 200 + noise % 50])
        }
    });
    image.save(path).unwrap();
}

/// Writes a folder with `train/<class>` and `val/<class>` of two classes.
pub fn folder(root: &Path, train: u32, valid: u32) {
    for (split, count) in [("train", train), ("val", valid)] {
        for (label, class) in ["red", "blue"].into_iter().enumerate() {
            for number in 0..count {
                let path = root.join(format!("{split}/{class}/{number:02}.png"));
                write(&path, [8, 8], label as u32, number);
            }
        }
    }
}

/// Records of CIFAR-10 with these labels.
pub fn cifar(labels: &[u8]) -> Vec<u8> {
    let record = |label: &u8| {
        let pixels =
            (0..CIFAR_RECORD - 1).map(|place| (place * usize::from(*label + 1) % 251) as u8);
        [*label].into_iter().chain(pixels).collect::<Vec<u8>>()
    };
    labels.iter().flat_map(record).collect()
}
