//! Models of the recipes, a folder a model.
//!
//! Every configuration is read strictly from the `[model]` section of a recipe and, once the shape
//! of the images is known, makes the model on a device.

mod error;
pub mod lenet;
pub mod mlp;
pub mod resnet;

pub use error::ModelError;
pub use lenet::{LeNet, LeNetConfig};
pub use mlp::{Mlp, MlpConfig};
pub use resnet::{ResNet, ResNetConfig};
