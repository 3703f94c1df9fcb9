//! A small convolutional network in the manner of LeNet-5.

use crate::ModelError;
use bonfire_nn::conv::{Conv2d, Conv2dConfig};
use bonfire_nn::{ImageClassifier, ImageShape, Linear, LinearConfig};
use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of `[model]` with `kind = "lenet"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LeNetConfig {
    /// Channels of the two convolutions. Default `[16, 32]`.
    pub channels: [usize; 2],
    /// Width of the hidden linear layer. Default 128.
    pub hidden: usize,
}

impl Default for LeNetConfig {
    fn default() -> Self {
        Self { channels: [16, 32], hidden: 128 }
    }
}

/// Two 3x3 convolutions, each with ReLU and 2x2 max-pooling, and two linear layers.
///
/// # Reference
/// LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998, section II, with
/// ReLU and max-pooling in place of tanh and sub-sampling.
#[derive(Module, Debug)]
pub struct LeNet {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    fc1: Linear,
    fc2: Linear,
}

impl LeNetConfig {
    /// Makes the model.
    ///
    /// # Errors
    /// [`ModelError`] for images smaller than 4x4, or a layer without units or of too many.
    pub fn init(
        &self,
        image: ImageShape,
        num_classes: usize,
        device: &Device,
    ) -> Result<LeNet, ModelError> {
        if image.height < 4 || image.width < 4 {
            return Err(ModelError {
                key: "kind",
                value: "\"lenet\"".to_string(),
                remedy: format!(
                    "its two poolings need images of at least 4x4, these are {}x{}; use \"mlp\"",
                    image.height, image.width
                ),
            });
        }
        if self.hidden == 0 || self.channels.contains(&0) {
            let (key, value) = if self.hidden == 0 {
                ("hidden", "0".to_string())
            } else {
                ("channels", format!("{:?}", self.channels))
            };
            return Err(ModelError { key, value, remedy: "must be at least 1".to_string() });
        }
        let [first, second] = self.channels;
        let channels = format!("{:?}", self.channels);
        ModelError::check_layer("channels", &channels, &[image.channels, first, 3, 3])?;
        ModelError::check_layer("channels", &channels, &[first, second, 3, 3])?;
        let pooled = [second, image.height / 4, image.width / 4];
        ModelError::check_layer("hidden", self.hidden, &[&pooled[..], &[self.hidden]].concat())?;
        ModelError::check_layer("hidden", self.hidden, &[self.hidden, num_classes])?;
        let conv = |input, output| {
            Conv2dConfig::new([input, output], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        let flat = pooled.iter().product();
        Ok(LeNet {
            conv1: conv(image.channels, first),
            conv2: conv(first, second),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            fc1: LinearConfig::new(flat, self.hidden).init(device),
            fc2: LinearConfig::new(self.hidden, num_classes).init(device),
        })
    }
}

impl ImageClassifier for LeNet {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.conv1.forward(images)));
        let x = self.pool.forward(relu(self.conv2.forward(x)));
        let x = relu(self.fc1.forward(x.flatten(1, 3)));
        self.fc2.forward(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_sizes_are_pooled_down_and_scored() {
        let device = Device::flex();
        for (height, width) in [(8, 8), (28, 28), (5, 7)] {
            let image = ImageShape { channels: 1, height, width };
            let net = LeNetConfig::default().init(image, 10, &device).unwrap();
            assert_eq!(net.forward(Tensor::zeros([2, 1, height, width], &device)).dims(), [2, 10]);
        }
    }

    #[test]
    fn layers_that_no_memory_holds_are_refused() {
        let image = ImageShape { channels: 1, height: 28, width: 28 };
        for (channels, hidden, says) in [
            ([16, 32], 1 << 40, "model.hidden = 1099511627776: a layer would have 32 x 7 x 7 x"),
            ([usize::MAX, 1], 8, "model.channels = [18446744073709551615, 1]: a layer would"),
            ([1 << 20, 1 << 20], 8, "model.channels = [1048576, 1048576]: a layer would have"),
        ] {
            let config = LeNetConfig { channels, hidden };
            let error = config.init(image, 10, &Device::flex()).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
        let error = LeNetConfig::default().init(image, 1 << 40, &Device::flex()).unwrap_err();
        assert!(error.to_string().contains("128 x 1099511627776 weights"), "{error}");
    }

    #[test]
    fn images_too_small_for_the_poolings_are_refused() {
        let image = ImageShape { channels: 1, height: 3, width: 8 };
        let error = LeNetConfig::default().init(image, 10, &Device::flex()).unwrap_err();
        assert!(error.to_string().contains("3x8"), "{error}");
    }
}
