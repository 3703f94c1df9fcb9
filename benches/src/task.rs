//! What all loops train: model, data, and settings.

use crate::Result;
use bonfire::data::{DataLoader, Image, ImageSample, InMemoryDataset, LoaderConfig};
use bonfire::models::{LeNet, LeNetConfig, Mlp, MlpConfig};
use bonfire::nn::ImageShape;
use bonfire::trainer::ImageCollate;
use burn::tensor::Device;
use std::sync::Arc;

/// Images of a step of one rank.
pub(crate) const BATCH_SIZE: usize = 64;
/// Steps between two readings of loss and accuracy.
pub(crate) const LOG_EVERY: u64 = 50;
pub(crate) const LEARNING_RATE: f64 = 0.01;

const SEED: u64 = 1;
const NUM_IMAGES: u64 = 60_000;
const NUM_CLASSES: usize = 10;
const IMAGE: ImageShape = ImageShape { channels: 1, height: 28, width: 28 };

pub(crate) type Loader = DataLoader<InMemoryDataset<ImageSample>, ImageCollate>;

/// Makes the loader; all ranks make the same data.
pub(crate) fn loader(device: &Device, workers: usize) -> Result<Loader> {
    let samples = (0..NUM_IMAGES).map(sample).collect::<Result<_>>()?;
    let collate = ImageCollate::new(IMAGE, Some((0.5, 0.29)), device);
    let config = LoaderConfig {
        batch_size: BATCH_SIZE,
        workers,
        seed: SEED,
        shuffle: true,
        ..LoaderConfig::default()
    };
    Ok(DataLoader::new(Arc::new(InMemoryDataset::new(samples)), Arc::new(collate), config))
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Network {
    /// A perceptron, 784-256-10: steps of about a millisecond.
    Mlp,
    /// A small convolutional network: steps of tens of milliseconds.
    Cnn,
}

/// Makes the convolutional network.
pub(crate) fn cnn(device: &Device) -> Result<LeNet> {
    device.seed(SEED);
    Ok(LeNetConfig::default().init(IMAGE, NUM_CLASSES, &device.clone().autodiff())?)
}

/// Makes the perceptron.
pub(crate) fn mlp(device: &Device) -> Result<Mlp> {
    device.seed(SEED);
    let config = MlpConfig { hidden: vec![256] };
    Ok(config.init(IMAGE, NUM_CLASSES, &device.clone().autodiff())?)
}

/// An image of noise whose class shows as a bright row, so that there is something to learn.
fn sample(index: u64) -> Result<ImageSample> {
    let label = (index % NUM_CLASSES as u64) as usize;
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 56) as u8
    };
    let mut pixels: Vec<u8> = (0..IMAGE.height * IMAGE.width).map(|_| noise()).collect();
    pixels[label * IMAGE.width..(label + 1) * IMAGE.width].fill(255);
    let image = Image::new(pixels, [IMAGE.height, IMAGE.width, 1])?;
    Ok(ImageSample { image, label: label as u32 })
}
