//! Images that are made up, for runs without any data.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::{
    DataError, Dataset, DatasetDigest, Image, ImageDataset, ImageSample, MIN_CLASSES,
    SampleContext, Split,
};

/// The steps that a wave rises and falls in.
const PERIOD: usize = 256;
/// How far noise goes from the wave, to either side.
const NOISE: i32 = 48;

/// Images of waves under noise that a model can learn to tell apart.
///
/// Each class is a wave of its own direction, length, phase and colour (60 of them in grey, 240 in
/// colour, more classes repeat them); an image is the wave of its class, moved by up to an eighth of its
/// length, under noise of its own. A pixel depends on split, index,
/// shape and number of classes only, by integer arithmetic, so it is the same on every machine. Sample
/// `i` has label `i % num_classes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticImages {
    num_samples: usize,
    shape: [usize; 3],
    num_classes: usize,
    split: Split,
}

impl SyntheticImages {
    /// Makes up `num_samples` images of `shape`, `[height, width, channels]`.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidOption`] when there are no samples, the shape has a zero, there are neither 1
    /// nor 3 channels, or fewer than two classes.
    pub fn new(
        num_samples: usize,
        shape: [usize; 3],
        num_classes: usize,
        split: Split,
    ) -> Result<Self, DataError> {
        let [height, width, channels] = shape;
        let checks = [
            ("num_samples", num_samples, num_samples > 0, "it must be 1 or more"),
            ("height", height, (1..=1 << 14).contains(&height), "it must be from 1 to 16384"),
            ("width", width, (1..=1 << 14).contains(&width), "it must be from 1 to 16384"),
            ("channels", channels, [1, 3].contains(&channels), "it must be 1 or 3"),
            ("num_classes", num_classes, num_classes >= MIN_CLASSES, "it must be 2 or more"),
        ];
        match checks.into_iter().find(|(_, _, fits, _)| !fits) {
            Some((name, value, _, rule)) => Err(DataError::InvalidOption { name, value, rule }),
            None => Ok(Self { num_samples, shape, num_classes, split }),
        }
    }

    fn generator(&self, index: usize) -> ChaCha8Rng {
        let split = match self.split {
            Split::Train => 0,
            Split::Test => 1 << 63,
        };
        ChaCha8Rng::seed_from_u64(split | index as u64)
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        let [height, width, channels] = self.shape;
        let mut random = self.generator(index);
        let class = index % self.num_classes;
        let moved = random.next_u32() as usize % (PERIOD / 8);
        let Wave { across, down, phase, tint } = Wave::of(class);
        let mut pixels = vec![0; height * width * channels];
        random.fill_bytes(&mut pixels);
        for (place, pixel) in pixels.iter_mut().enumerate() {
            let (row, column) = (place / channels / width, place / channels % width);
            let shift = phase + place % channels * tint;
            let angle = across * column * PERIOD / width + down * row * PERIOD / height;
            let noise = i32::from(*pixel) * (2 * NOISE) / 255 - NOISE;
            *pixel = (wave(angle + moved + shift) + noise).clamp(0, 255) as u8;
        }
        Image::new(pixels, self.shape)
    }
}

/// What tells the images of one class from those of others.
struct Wave {
    /// Whole waves over the width and the height of the image.
    across: usize,
    down: usize,
    /// Where the wave begins.
    phase: usize,
    /// By how much each channel is ahead of the one before.
    tint: usize,
}

impl Wave {
    /// Goes through the pairs of 0 to 3 waves first, since few waves fit into small images.
    fn of(class: usize) -> Self {
        let (pair, quarter) = (class % 15 + 1, class / 15);
        Self {
            across: pair % 4,
            down: pair / 4,
            phase: quarter % 4 * (PERIOD / 4),
            tint: quarter / 4 % 4 * (PERIOD / 4) + PERIOD / 8,
        }
    }
}

/// The height of a wave of straight lines, between 48 and 207.
fn wave(angle: usize) -> i32 {
    let place = (angle % PERIOD) as i32;
    let half = PERIOD as i32 / 2;
    48 + (half - (place - half).abs()) * 159 / half
}

impl Dataset for SyntheticImages {
    type Item = ImageSample;

    fn len(&self) -> usize {
        self.num_samples
    }

    fn get(&self, context: &SampleContext) -> Result<ImageSample, DataError> {
        let (index, len) = (context.index, self.num_samples);
        if index >= len {
            return Err(DataError::IndexOutOfRange { index, len });
        }
        Ok(ImageSample { image: self.image(index)?, label: (index % self.num_classes) as u32 })
    }

    fn digest(&self) -> DatasetDigest {
        let [height, width, channels] = self.shape.map(|length| length as u64);
        DatasetDigest {
            num_samples: self.num_samples as u64,
            class_names: (0..self.num_classes).map(|class| class.to_string()).collect(),
            content: (height << 32 | width << 8 | channels)
                ^ (u64::from(self.split == Split::Test) << 63),
        }
    }
}

impl ImageDataset for SyntheticImages {
    fn image_shape(&self) -> Option<[usize; 3]> {
        Some(self.shape)
    }

    fn num_classes(&self) -> usize {
        self.num_classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(data: &SyntheticImages, index: usize) -> Vec<u8> {
        let sample = data.get(&SampleContext { seed: 9, epoch: index as u64, index }).unwrap();
        assert_eq!(sample.label as usize, index % data.num_classes());
        sample.image.into_vec()
    }

    #[test]
    fn images_never_change_and_differ_by_index_and_split() {
        let train = SyntheticImages::new(100, [6, 8, 3], 10, Split::Train).unwrap();
        let test = SyntheticImages::new(100, [6, 8, 3], 10, Split::Test).unwrap();
        assert_eq!(pixels(&train, 3), pixels(&train, 3));
        assert_ne!(pixels(&train, 3), pixels(&train, 13));
        assert_ne!(pixels(&train, 3), pixels(&test, 3));
        let hash = xxhash_rust::xxh3::xxh3_64(&pixels(&train, 3));
        assert_eq!(
            hash, 7_204_997_212_702_666_226,
            "the pixels have changed: recipes that were measured no longer hold"
        );
    }

    #[test]
    fn the_nearest_mean_of_a_class_tells_nearly_all_images_apart() {
        for (shape, num_classes) in [([16, 16, 3], 10), ([16, 16, 1], 10), ([32, 32, 3], 100)] {
            let train = SyntheticImages::new(20 * num_classes, shape, num_classes, Split::Train);
            let (train, size) = (train.unwrap(), shape.iter().product());
            let mut means = vec![vec![0.0; size]; num_classes];
            for index in 0..train.len() {
                for (mean, pixel) in
                    means[index % num_classes].iter_mut().zip(pixels(&train, index))
                {
                    *mean += f64::from(pixel) / 20.0;
                }
            }
            let test =
                SyntheticImages::new(2 * num_classes, shape, num_classes, Split::Test).unwrap();
            let correct = (0..test.len()).filter(|&index| {
                let image = pixels(&test, index);
                let distance = |mean: &Vec<f64>| -> f64 {
                    mean.iter()
                        .zip(&image)
                        .map(|(mean, pixel)| (mean - f64::from(*pixel)).powi(2))
                        .sum()
                };
                let nearest = (0..num_classes).min_by(|one, other| {
                    distance(&means[*one]).total_cmp(&distance(&means[*other]))
                });
                nearest == Some(index % num_classes)
            });
            let share = correct.count() as f64 / test.len() as f64;
            assert!(share > 0.95, "{shape:?}, {num_classes} classes: {share}");
        }
    }

    #[test]
    fn impossible_options_are_named() {
        for (num_samples, shape, num_classes, name) in [
            (0, [1, 1, 1], 2, "num_samples is 0"),
            (1, [0, 1, 1], 2, "height is 0"),
            (1, [1, 99_999, 1], 2, "width is 99999"),
            (1, [1, 1, 2], 2, "channels is 2"),
            (1, [1, 1, 1], 1, "num_classes is 1"),
        ] {
            let error = SyntheticImages::new(num_samples, shape, num_classes, Split::Train);
            assert!(error.unwrap_err().to_string().starts_with(name), "{name}");
        }
    }
}
