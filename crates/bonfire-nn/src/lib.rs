//! Building blocks that models share.

mod classifier;
mod error;
mod norm;

pub use classifier::{ImageClassifier, ImageShape, correct_predictions, cross_entropy};
pub use error::NnError;
pub use norm::{Norm, NormConfig, NormKind};
