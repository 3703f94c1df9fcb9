//! Figures of all images of a data set.

use bonfire_data::{Image, ImageDataset, SampleContext};
use image::imageops::FilterType;
use image::{DynamicImage, GrayImage, RgbImage};
use std::num::NonZero;
use std::thread;

/// Images of a class that are kept for a sheet.
pub(super) const KEPT_PER_CLASS: usize = 10;
/// Unreadable images whose reasons are kept.
pub(super) const TOLD: usize = 5;
/// Pixels of the longer side of those images.
pub(super) const THUMBNAIL: u32 = 64;

/// Figures of all images of a data set.
#[derive(Debug, Clone, Default)]
pub(super) struct Statistics {
    /// Images of each class.
    pub(super) counts: Vec<u64>,
    /// Least and largest height and width; `None` without a readable image.
    pub(super) sizes: Option<[[usize; 2]; 2]>,
    /// For each channel the number, the sum and the sum of squares of all values.
    sums: Vec<[u64; 3]>,
    /// Number of images that cannot be read.
    pub(super) num_unreadable: usize,
    /// The reasons of the first [`TOLD`] of them, in the order of the images.
    pub(super) unreadable: Vec<(usize, String)>,
    /// The first images of each class, small.
    pub(super) thumbnails: Vec<Vec<(usize, RgbImage)>>,
}

impl Statistics {
    /// Reads all images, with as many threads as there are cores.
    ///
    /// Sums are of whole numbers, so that the figures depend on no order.
    pub(super) fn of(images: &dyn ImageDataset, thumbnails: bool) -> Self {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let part = |first: usize| {
            let mut part = Self::for_classes(images.num_classes());
            for index in (first..images.len()).step_by(threads) {
                part.add(images, index, thumbnails);
            }
            part
        };
        let mut all = Self::for_classes(images.num_classes());
        thread::scope(|scope| {
            let parts: Vec<_> =
                (0..threads).map(|first| scope.spawn(move || part(first))).collect();
            // A panic of a data set goes on here.
            for part in parts {
                match part.join() {
                    Ok(part) => all.merge(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        all
    }

    fn for_classes(num_classes: usize) -> Self {
        let (counts, thumbnails) = (vec![0; num_classes], vec![Vec::new(); num_classes]);
        Self { counts, thumbnails, ..Self::default() }
    }

    fn add(&mut self, images: &dyn ImageDataset, index: usize, thumbnails: bool) {
        let sample = match images.get(&SampleContext { seed: 0, epoch: 0, index }) {
            Ok(sample) => sample,
            Err(error) => {
                self.num_unreadable += 1;
                if self.unreadable.len() < TOLD {
                    self.unreadable.push((index, error.to_string()));
                }
                return;
            }
        };
        let (image, class) = (sample.image, sample.label as usize);
        if let Some(count) = self.counts.get_mut(class) {
            *count += 1;
        }
        let size = [image.height(), image.width()];
        self.merge_sizes(Some([size, size]));
        self.sums.resize(self.sums.len().max(image.channels()), [0; 3]);
        for (channel, sums) in self.sums.iter_mut().enumerate() {
            for &value in image.pixels().iter().skip(channel).step_by(image.channels()) {
                let value = u64::from(value);
                *sums = [sums[0] + 1, sums[1] + value, sums[2] + value * value];
            }
        }
        if let Some(kept) = self.thumbnails.get_mut(class).filter(|_| thumbnails)
            && kept.len() < KEPT_PER_CLASS
        {
            kept.extend(thumbnail(image).map(|image| (index, image)));
        }
    }

    fn merge(&mut self, other: Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.merge_sizes(other.sizes);
        self.sums.resize(self.sums.len().max(other.sums.len()), [0; 3]);
        for (sums, more) in self.sums.iter_mut().zip(other.sums) {
            *sums = std::array::from_fn(|place| sums[place] + more[place]);
        }
        self.num_unreadable += other.num_unreadable;
        self.unreadable.extend(other.unreadable);
        self.unreadable.sort();
        self.unreadable.truncate(TOLD);
        for (kept, more) in self.thumbnails.iter_mut().zip(other.thumbnails) {
            kept.extend(more);
            kept.sort_by_key(|(index, _)| *index);
            kept.truncate(KEPT_PER_CLASS);
        }
    }

    fn merge_sizes(&mut self, other: Option<[[usize; 2]; 2]>) {
        self.sizes = match (self.sizes, other) {
            (Some([least, most]), Some([other_least, other_most])) => Some([
                [0, 1].map(|side| least[side].min(other_least[side])),
                [0, 1].map(|side| most[side].max(other_most[side])),
            ]),
            (sizes, other) => sizes.or(other),
        };
    }

    /// Returns mean and deviation of each channel over all pixels, in units of the 0..1 range.
    pub(super) fn mean_and_deviation(&self) -> Vec<[f64; 2]> {
        let figures = |&[count, sum, squares]: &[u64; 3]| {
            let count = count as f64;
            let mean = sum as f64 / count;
            let variance = squares as f64 / count - mean * mean;
            [mean / 255.0, variance.max(0.0).sqrt() / 255.0]
        };
        self.sums.iter().map(figures).collect()
    }
}

/// The image, shrunk or enlarged until its longer side has [`THUMBNAIL`] pixels.
fn thumbnail(image: Image) -> Option<RgbImage> {
    let [height, width, channels] = image.shape();
    let (height, width) = (u32::try_from(height).ok()?, u32::try_from(width).ok()?);
    let pixels = image.into_vec();
    let whole: DynamicImage = match channels {
        1 => GrayImage::from_raw(width, height, pixels)?.into(),
        _ => RgbImage::from_raw(width, height, pixels)?.into(),
    };
    // Enlarged, pixels are to be seen as what they are.
    let small = height.max(width) < THUMBNAIL;
    let filter = if small { FilterType::Nearest } else { FilterType::Triangle };
    Some(whole.resize(THUMBNAIL, THUMBNAIL, filter).into_rgb8())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_data::{DataError, Dataset, DatasetDigest, ImageSample, InMemoryDataset};

    fn sample(pixels: &[u8], shape: [usize; 3], label: u32) -> ImageSample {
        ImageSample { image: Image::new(pixels.to_vec(), shape).unwrap(), label }
    }

    #[test]
    fn figures_are_over_all_pixels_of_all_images() {
        let images = InMemoryDataset::of_images(vec![
            sample(&[0, 10, 255, 10], [1, 2, 2], 0),
            sample(&[0, 10], [1, 1, 2], 2),
            sample(&[255, 10], [1, 1, 2], 2),
        ]);
        let figures = Statistics::of(&images, false);
        assert_eq!(figures.counts, [1, 0, 2]);
        assert_eq!(figures.sizes, Some([[1, 1], [1, 2]]));
        let [first, second] = figures.mean_and_deviation()[..] else { panic!("two channels") };
        assert_eq!(first, [0.5, 0.5]);
        assert!((second[0] - 10.0 / 255.0).abs() < 1e-12 && second[1] == 0.0, "{second:?}");
    }

    /// Of a data set of millions that lies on a broken disk, too, only the first reasons are kept.
    #[test]
    fn the_first_reasons_are_kept_and_all_failures_counted() {
        struct Broken;

        impl Dataset for Broken {
            type Item = ImageSample;

            fn len(&self) -> usize {
                1000
            }

            fn get(&self, context: &SampleContext) -> Result<ImageSample, DataError> {
                Err(DataError::message(format!("number {}", context.index)))
            }

            fn digest(&self) -> DatasetDigest {
                DatasetDigest { num_samples: 1000, class_names: vec![], content: 0 }
            }
        }

        impl ImageDataset for Broken {
            fn image_shape(&self) -> Option<[usize; 3]> {
                None
            }

            fn num_classes(&self) -> usize {
                2
            }
        }

        let figures = Statistics::of(&Broken, false);
        assert_eq!((figures.num_unreadable, figures.sizes), (1000, None));
        let expected: Vec<_> = (0..TOLD).map(|index| (index, format!("number {index}"))).collect();
        assert_eq!(figures.unreadable, expected);
    }

    #[test]
    fn the_first_images_of_each_class_are_kept_in_order() {
        let all =
            (0..40u8).map(|index| sample(&[index], [1, 1, 1], u32::from(index % 2))).collect();
        let figures = Statistics::of(&InMemoryDataset::of_images(all), true);
        for (class, kept) in figures.thumbnails.iter().enumerate() {
            let expected: Vec<u8> = (0..10).map(|number| 2 * number + class as u8).collect();
            let found: Vec<u8> =
                kept.iter().map(|(_, image)| image.get_pixel(5, 60).0[0]).collect();
            assert_eq!(found, expected);
        }
    }
}
