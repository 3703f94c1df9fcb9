//! Samples that are the same in every process, without a random number generator.

use bonfire_nn::ImageShape;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::ops::Range;

/// Numbers per sample.
pub const FEATURES: usize = 20;
/// Classes of the labels.
pub const CLASSES: usize = 10;
/// The features as an image.
pub const IMAGE: ImageShape = ImageShape { channels: 1, height: 4, width: 5 };

/// Samples with their labels.
#[derive(Debug, Clone)]
pub struct Samples {
    features: Vec<f64>,
    labels: Vec<i64>,
}

impl Samples {
    /// Samples of given features, [`FEATURES`] each, and labels.
    ///
    /// # Panics
    /// When the counts do not agree.
    pub fn new(features: Vec<f64>, labels: Vec<i64>) -> Self {
        assert_eq!(features.len(), labels.len() * FEATURES);
        Self { features, labels }
    }

    /// The samples with these numbers out of an endless data set.
    ///
    /// Features are hashes of their position, in [-1, 1); the label is the position of the largest
    /// of the first [`CLASSES`].
    pub fn synthetic(numbers: Range<usize>) -> Self {
        let features: Vec<f64> = (numbers.start * FEATURES..numbers.end * FEATURES)
            .map(|key| unit(key as u64))
            .collect();
        let labels = features.chunks_exact(FEATURES).map(|sample| largest(&sample[..CLASSES]));
        let labels = labels.collect();
        Self::new(features, labels)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// A run of them.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let features = self.features[range.start * FEATURES..range.end * FEATURES].to_vec();
        Self::new(features, self.labels[range].to_vec())
    }

    /// The features in the device's default precision.
    ///
    /// # Shapes
    /// `[samples, channels, height, width]` of [`IMAGE`]
    pub fn images(&self, device: &Device) -> Tensor<4> {
        let shape = [self.len(), IMAGE.channels, IMAGE.height, IMAGE.width];
        Tensor::from_data(TensorData::new(self.features.clone(), shape), device)
    }

    /// The labels.
    ///
    /// # Shapes
    /// `[samples]`
    pub fn targets(&self, device: &Device) -> Tensor<1, Int> {
        Tensor::from_data(TensorData::new(self.labels.clone(), [self.len()]), device)
    }
}

fn largest(values: &[f64]) -> i64 {
    let mut position = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[position] {
            position = index;
        }
    }
    position as i64
}

/// A hash of `key` as a number in [-1, 1): the top 53 bits of splitmix64.
fn unit(key: u64) -> f64 {
    let mut x = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 31;
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}
