//! Building blocks that models share.

mod classifier;
mod error;
mod layers;
mod norm;
mod pytorch;
mod sync_batch_norm;
mod synchronization;
mod watch;
mod wide;

pub use classifier::{
    ImageClassifier, ImageShape, correct_predictions, cross_entropy, cross_entropy_mixed,
    cross_entropy_smoothed,
};
pub use error::NnError;
pub use layers::{Linear, LinearConfig, conv};
pub use norm::{Norm, NormConfig, NormKind};
pub use pytorch::PyTorchTensor;
pub use sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig};
pub use synchronization::{
    connect_sync_batchnorm, convert_sync_batchnorm, has_sync_batchnorm, is_synchronized,
};
pub use watch::{LayerCall, LayerName, Watch, report_layer, watch_layers};
pub use wide::{in_f32, log_softmax, softmax};
