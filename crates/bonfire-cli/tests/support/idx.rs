//! Data sets made by a test.

use std::fs;
use std::path::Path;

/// Writes `train` training and `test` test images of 8x8 pixels into a folder.
pub fn write(folder: &Path, train: usize, test: usize) {
    fs::create_dir_all(folder).unwrap();
    for (split, count) in [("train", train), ("t10k", test)] {
        fs::write(folder.join(format!("{split}-images-idx3-ubyte")), images(count)).unwrap();
        fs::write(folder.join(format!("{split}-labels-idx1-ubyte")), labels(count)).unwrap();
    }
}

/// An IDX file of images that differ.
pub fn images(count: usize) -> Vec<u8> {
    let pixels = (0..count * 64).map(|index| (index * 7 % 251) as u8);
    header(&[count, 8, 8]).into_iter().chain(pixels).collect()
}

/// An IDX file of labels 0 to 9.
pub fn labels(count: usize) -> Vec<u8> {
    let labels = (0..count).map(|index| (index % 10) as u8);
    header(&[count]).into_iter().chain(labels).collect()
}

fn header(dims: &[usize]) -> Vec<u8> {
    let sizes = dims.iter().flat_map(|size| u32::try_from(*size).unwrap().to_be_bytes());
    [0, 0, 8, dims.len() as u8].into_iter().chain(sizes).collect()
}
