//! The networks of the overhead bench, and their batches.

use bonfire::nn::{ImageClassifier, ImageShape};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor};

pub(crate) const NUM_CLASSES: usize = 10;
const NUM_BATCHES: usize = 8;

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Network {
    /// 784-256-10, batches of 64.
    Mlp,
    /// Two convolutions and two linear layers on 28x28 images, batches of 64.
    Cnn,
    /// ResNet-18 with CIFAR's stem on 32x32 images, batches of 32.
    Resnet18,
}

impl Network {
    pub(crate) fn image(self) -> ImageShape {
        match self {
            Self::Mlp | Self::Cnn => ImageShape { channels: 1, height: 28, width: 28 },
            Self::Resnet18 => ImageShape { channels: 3, height: 32, width: 32 },
        }
    }

    pub(crate) fn batch_size(self) -> usize {
        match self {
            Self::Mlp | Self::Cnn => 64,
            Self::Resnet18 => 32,
        }
    }
}

/// Convolutions of 3x3 to 32 and 64 channels without padding, a pooling, and two linear layers.
#[derive(Module, Debug)]
pub(crate) struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    fc1: Linear,
    fc2: Linear,
}

impl Cnn {
    /// Makes the network for images of 28x28 with one channel.
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 32], [3, 3]).init(device),
            conv2: Conv2dConfig::new([32, 64], [3, 3]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            fc1: LinearConfig::new(64 * 12 * 12, 128).init(device),
            fc2: LinearConfig::new(128, NUM_CLASSES).init(device),
        }
    }
}

impl ImageClassifier for Cnn {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = relu(self.conv1.forward(images));
        let x = self.pool.forward(relu(self.conv2.forward(x)));
        let x = relu(self.fc1.forward(x.flatten(1, 3)));
        self.fc2.forward(x)
    }
}

/// A few random batches, again and again, so that making them costs nothing.
pub(crate) struct Batches {
    batches: Vec<(Tensor<4>, Tensor<1, Int>)>,
    next: usize,
}

impl Batches {
    pub(crate) fn new(image: ImageShape, batch_size: usize, device: &Device) -> Self {
        let ImageShape { channels, height, width } = image;
        let batch = |index: usize| {
            let noise = Distribution::Uniform(0.0, 1.0);
            let images = Tensor::random([batch_size, channels, height, width], noise, device);
            let targets: Vec<i64> =
                (0..batch_size).map(|sample| ((index + 7 * sample) % NUM_CLASSES) as i64).collect();
            (images, Tensor::from_data(targets.as_slice(), device))
        };
        Self { batches: (0..NUM_BATCHES).map(batch).collect(), next: 0 }
    }

    pub(crate) fn next(&mut self) -> (Tensor<4>, Tensor<1, Int>) {
        self.next = (self.next + 1) % self.batches.len();
        self.batches[self.next].clone()
    }
}
