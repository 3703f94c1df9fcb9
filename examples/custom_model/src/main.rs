//! A model and a data set of one's own in recipes: this program has the whole command line of `bonfire`,
//! and knows `model.kind = "my_net"` and `data.kind = "shapes"` beside those that come with Bonfire.
//!
//! Run it from the root of the repository:
//!
//! ```text
//! cargo run --release -p custom_model -- train examples/custom_model/my_net.toml --nproc-per-node 2
//! cargo run --release -p custom_model -- train examples/custom_model/my_shapes.toml --nproc-per-node 2
//! ```

mod shapes;

use bonfire::models::ModelError;
use bonfire::nn::{ImageClassifier, ImageShape};
use bonfire_cli::{ModelConfig, Registry};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

fn main() -> ExitCode {
    let registry = Registry::builtin().with_model::<MyNetConfig>("my_net");
    bonfire_cli::run(registry.with_data::<shapes::ShapesConfig>("shapes"))
}

/// Keys of `[model]` with `kind = "my_net"`; an unknown key is an error that names the nearest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
struct MyNetConfig {
    /// Channels of every convolution.
    channels: usize,
    /// Number of residual blocks.
    blocks: usize,
}

impl Default for MyNetConfig {
    fn default() -> Self {
        Self { channels: 16, blocks: 2 }
    }
}

impl ModelConfig for MyNetConfig {
    type Model = MyNet;

    fn init(
        &self,
        image: ImageShape,
        num_classes: usize,
        device: &Device,
    ) -> Result<MyNet, ModelError> {
        if self.channels == 0 {
            let (value, remedy) = ("0".to_string(), "must be at least 1".to_string());
            return Err(ModelError { key: "channels", value, remedy });
        }
        let conv = |input, output| {
            Conv2dConfig::new([input, output], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        let block = |_| Block {
            first: conv(self.channels, self.channels),
            second: conv(self.channels, self.channels),
        };
        Ok(MyNet {
            stem: conv(image.channels, self.channels),
            blocks: (0..self.blocks).map(block).collect(),
            head: LinearConfig::new(self.channels * image.height * image.width, num_classes)
                .init(device),
        })
    }
}

/// A stem, residual blocks, and a linear layer over all that is left.
#[derive(Module, Debug)]
struct MyNet {
    stem: Conv2d,
    blocks: Vec<Block>,
    head: Linear,
}

/// `relu(x + conv(relu(conv(x))))`
#[derive(Module, Debug)]
struct Block {
    first: Conv2d,
    second: Conv2d,
}

/// With this the model can be trained: the loss is cross-entropy, the metric accuracy.
impl ImageClassifier for MyNet {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let mut x = relu(self.stem.forward(images));
        for block in &self.blocks {
            let y = block.second.forward(relu(block.first.forward(x.clone())));
            x = relu(x + y);
        }
        self.head.forward(x.flatten(1, 3))
    }
}
