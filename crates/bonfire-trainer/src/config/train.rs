//! `[train]`: where, how long, and how often to look.

use bonfire_metrics::Figure;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::batch_limit::BatchLimit;
use super::choice::choice;
use super::fast_dev_run::FastDevRun;

choice! {
    /// `train.device`.
    DeviceKind {
        /// The processor.
        Cpu = "cpu",
        /// NVIDIA GPUs, one for each rank.
        Cuda = "cuda",
    }
}

choice! {
    /// Figures of classes that validations compute (`train.metrics`).
    MetricKind {
        /// Share of images whose class is among the five likeliest.
        Top5Accuracy = "top5_accuracy",
        /// Precision, the mean over classes.
        Precision = "precision",
        /// Recall, the mean over classes.
        Recall = "recall",
        /// F1, the mean over classes.
        F1 = "f1",
        /// Area under the ROC curve, of each class against the rest, the mean over classes.
        Auroc = "auroc",
        /// How often each class was taken for which, in summary.json and the report.
        ConfusionMatrix = "confusion_matrix",
    }
}

impl From<MetricKind> for Figure {
    fn from(kind: MetricKind) -> Self {
        match kind {
            MetricKind::Top5Accuracy => Self::Top5,
            MetricKind::Precision => Self::Precision,
            MetricKind::Recall => Self::Recall,
            MetricKind::F1 => Self::F1,
            MetricKind::Auroc => Self::Auroc,
            MetricKind::ConfusionMatrix => Self::ConfusionMatrix,
        }
    }
}

/// `[train]`: where and how long to train, and how often to look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainSection {
    /// Where the model is trained, `"cpu"` or `"cuda"`: rank r of a machine has its GPU r; default
    /// `"cpu"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKind>,
    /// Passes over the training data; default 10. Not together with `max_steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_epochs: Option<u64>,
    /// Optimizer steps, instead of `max_epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// Micro-batches per optimizer step; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate_grad_batches: Option<usize>,
    /// Optimizer steps between two rows of metrics; default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_every_n_steps: Option<u64>,
    /// Epochs between two validations; default 1; 0 validates only at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_val_every_n_epochs: Option<u64>,
    /// Only tries whether everything goes through: so many steps and batches of validation (`true`: one),
    /// without warm-up, schedule, averages and early stopping, and nothing is written; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_dev_run: Option<FastDevRun>,
    /// Micro-batches of an epoch that each rank trains on: a number, or a share such as 0.1; default 1.0, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_train_batches: Option<BatchLimit>,
    /// Batches that each rank validates on, in the same way; default 1.0, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_val_batches: Option<BatchLimit>,
    /// Trains on the same so many (or such a share of) batches in each epoch, without shuffling, and validates
    /// on them: a model that learns at all comes to a loss near 0; default: not. Not together with the limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overfit_batches: Option<BatchLimit>,
    /// Batches of each rank that a new run validates on before its first step, so that a validation that fails
    /// does so at once; default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_sanity_val_steps: Option<u64>,
    /// Looks at every loss and gradient at once, and at the output of every layer, so that the first value that
    /// is not finite ends the run with the name of its layer; costs a pass over every output; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detect_anomaly: Option<bool>,
    /// Figures of classes that validations compute beside loss and accuracy; default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Vec<MetricKind>>,
    /// Computes cheap activations again in the backward pass instead of keeping them; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradient_checkpointing: Option<bool>,
    /// Share of the target's probability that a classifier's training loss spreads over all classes,
    /// in [0, 1]; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_smoothing: Option<f64>,
}
