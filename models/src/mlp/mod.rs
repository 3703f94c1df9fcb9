//! A multi-layer perceptron over the pixels.

use crate::ModelError;
use bonfire_nn::{ImageClassifier, ImageShape, Linear, LinearConfig};
use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of `[model]` with `kind = "mlp"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MlpConfig {
    /// Width of each hidden layer. Default `[256]`.
    pub hidden: Vec<usize>,
}

impl Default for MlpConfig {
    fn default() -> Self {
        Self { hidden: vec![256] }
    }
}

/// Linear layers with ReLU between them.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl MlpConfig {
    /// Makes the model with PyTorch's initialisation of linear layers.
    ///
    /// # Errors
    /// [`ModelError`] for a layer without units or of too many.
    pub fn init(
        &self,
        image: ImageShape,
        num_classes: usize,
        device: &Device,
    ) -> Result<Mlp, ModelError> {
        if self.hidden.contains(&0) {
            return Err(ModelError {
                key: "hidden",
                value: format!("{:?}", self.hidden),
                remedy: "give every hidden layer at least one unit".to_string(),
            });
        }
        let pixels = [image.channels, image.height, image.width];
        ModelError::check_layer("hidden", format!("{:?}", self.hidden), &pixels)?;
        let mut sizes = vec![pixels.iter().product()];
        sizes.extend(&self.hidden);
        sizes.push(num_classes);
        for pair in sizes.windows(2) {
            ModelError::check_layer("hidden", format!("{:?}", self.hidden), pair)?;
        }
        let layers =
            sizes.windows(2).map(|pair| LinearConfig::new(pair[0], pair[1]).init(device)).collect();
        Ok(Mlp { layers })
    }
}

impl ImageClassifier for Mlp {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let mut x: Tensor<2> = images.flatten(1, 3);
        let last = self.layers.len().saturating_sub(1);
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x);
            if index < last {
                x = relu(x);
            }
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_have_a_row_per_image_and_a_column_per_class() {
        let device = Device::flex();
        let image = ImageShape { channels: 1, height: 8, width: 8 };
        let mlp = MlpConfig { hidden: vec![16, 8] }.init(image, 10, &device).unwrap();
        assert_eq!(mlp.forward(Tensor::zeros([3, 1, 8, 8], &device)).dims(), [3, 10]);
        assert_eq!(mlp.num_params(), 64 * 16 + 16 + 16 * 8 + 8 + 8 * 10 + 10);
    }

    #[test]
    fn empty_layers_and_those_that_no_memory_holds_are_refused() {
        let image = ImageShape { channels: 1, height: 8, width: 8 };
        for (hidden, says) in [
            (vec![0], "at least one unit"),
            (vec![1 << 30], "64 x 1073741824 weights"),
            (vec![8, usize::MAX], "8 x 18446744073709551615 weights"),
        ] {
            let error = MlpConfig { hidden }.init(image, 10, &Device::flex()).unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with("model.hidden = [") && error.contains(says), "{error}");
        }
    }
}
