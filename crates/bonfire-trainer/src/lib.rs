//! Run configuration, the training loop, checkpoints, metrics and callbacks.
//!
//! A model implements [`Learnable`] (every [`ImageClassifier`](bonfire_nn::ImageClassifier) does
//! already), and [`Trainer::fit`] trains it on all ranks of a group.

mod agreement;
mod average;
mod batch_source;
mod best;
pub mod burn_learner;
mod callback;
pub mod checkpoint;
pub mod config;
mod context;
mod early_stopping;
mod error;
mod evaluate;
mod image;
mod learnable;
mod lifecycle;
mod memory;
mod metrics;
mod metrics_file;
mod metrics_lines;
mod open_images;
mod optimizer;
mod position;
mod precision;
mod progress;
mod report_page;
mod rescue;
mod resume;
mod room;
mod run;
pub mod run_folder;
mod sample_log;
mod saving;
mod settled;
mod step;
mod stop;
mod tensorboard;
mod threads;
mod timing;
mod told;
mod trainer;
mod trainer_config;
pub mod weights;
mod whole_file;

pub use average::WeightAverage;
pub use batch_source::BatchSource;
pub use callback::{BatchStart, Callback, EpochEnd, FitStart, Report, StepEnd, Variant};
pub use context::{Context, init, init_with};
pub use early_stopping::EarlyStopping;
pub use error::TrainError;
pub use image::{ImageBatch, ImageCollate, MixedTargets};
pub use learnable::{ClassScores, Learnable, Metric, StepContext, StepOutput};
pub use memory::keep_freed_memory;
pub use metrics::{MetricValue, Metrics};
pub use metrics_file::MetricsFile;
pub use metrics_lines::MetricsLines;
pub use open_images::open_images;
pub use progress::ProgressPrinter;
pub use report_page::ReportPage;
pub use resume::Resume;
pub use run_folder::{RunFiles, RunFolder};
pub use sample_log::SampleLog;
pub use stop::StopFlag;
pub use tensorboard::TensorBoard;
pub use threads::limit_threads;
pub use timing::{RankFigures, TimeShare};
pub use trainer::{FitReport, Trainer};
pub use trainer_config::TrainerConfig;

pub use bonfire_metrics::{ConfusionMatrix, Figure};
pub use bonfire_parallel::{LossReduction, ModelValues};
