//! Building blocks that models share.

mod classifier;

pub use classifier::{ImageClassifier, ImageShape, correct_predictions, cross_entropy};
