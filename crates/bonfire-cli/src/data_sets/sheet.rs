//! A contact sheet: the first images of each class, a row a class.

use super::statistics::{KEPT_PER_CLASS, THUMBNAIL};
use image::imageops;
use image::{Rgb, RgbImage};

/// Most classes on a sheet; further ones are left out.
pub(super) const MOST_CLASSES: usize = 50;
/// Pixels between images.
const GAP: u32 = 4;

/// Draws rows of images whose longer side has [`THUMBNAIL`] pixels.
pub(super) fn draw(classes: &[Vec<(usize, RgbImage)>]) -> RgbImage {
    let rows = classes.len().clamp(1, MOST_CLASSES) as u32;
    let columns = KEPT_PER_CLASS as u32;
    let length = |cells: u32| cells * (THUMBNAIL + GAP) + GAP;
    let mut sheet = RgbImage::from_pixel(length(columns), length(rows), Rgb([255; 3]));
    for (row, images) in (0..rows).zip(classes) {
        for (column, (_, image)) in (0..columns).zip(images) {
            let place = |cell: u32, side: u32| {
                i64::from(cell * (THUMBNAIL + GAP) + GAP + (THUMBNAIL - side.min(THUMBNAIL)) / 2)
            };
            let (x, y) = (place(column, image.width()), place(row, image.height()));
            imageops::replace(&mut sheet, image, x, y);
        }
    }
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_class_and_images_stand_in_the_middle_of_their_cells() {
        let image = |width, height, value| RgbImage::from_pixel(width, height, Rgb([value; 3]));
        let sheet = draw(&[
            vec![(0, image(64, 64, 1)), (3, image(64, 32, 2))],
            vec![(1, image(64, 64, 3))],
        ]);
        assert_eq!(sheet.dimensions(), (684, 140));
        let at = |x, y| sheet.get_pixel(x, y).0[0];
        assert_eq!([at(4, 4), at(67, 67), at(68, 4)], [1, 1, 255]);
        assert_eq!([at(72, 19), at(72, 20), at(72, 51), at(72, 52)], [255, 2, 2, 255]);
        assert_eq!([at(4, 72), at(72, 72)], [3, 255]);
    }
}
