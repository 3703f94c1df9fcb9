//! Residual networks of 8 to 152 layers, for small images and for large ones.
//!
//! Fields have torchvision's names, so that a tensor's path is torchvision's but for Burn's words:
//! the kind of a block or normalisation after its name, and `gamma` and `beta` in place of `weight`
//! and `bias` in a normalisation: `layer1.0.Basic.bn1.Batch.gamma`. [`torchvision_tensor`] translates.

mod block;
mod config;
mod layers;
mod torchvision;

pub use block::{BasicBlock, Block, Bottleneck};
pub use config::{ResNetConfig, Stem};
pub use torchvision::torchvision_tensor;

use bonfire_nn::conv::Conv2d;
use bonfire_nn::{ImageClassifier, Linear, Norm};
use burn::module::Module;
use burn::nn::pool::MaxPool2d;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::module::adaptive_avg_pool2d;

/// A stem, three or four stages of residual blocks, and a linear layer on the mean over space.
///
/// Every stage but the first halves height and width and doubles the channels.
///
/// # Reference
/// He et al., "Deep Residual Learning for Image Recognition", 2015, table 1 and section 4.2, with
/// projections wherever a block changes the shape (option B); `torchvision.models.resnet`.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: Norm,
    maxpool: Option<MaxPool2d>,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    /// Empty in networks of three stages.
    layer4: Vec<Block>,
    fc: Linear,
}

impl ImageClassifier for ResNet {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let mut x = relu(self.bn1.forward(self.conv1.forward(images)));
        if let Some(maxpool) = &self.maxpool {
            x = maxpool.forward(x);
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten()
        {
            x = block.forward(x);
        }
        self.fc.forward(adaptive_avg_pool2d(x, [1, 1]).flatten(1, 3))
    }
}
