use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use bonfire_amp::AmpError;
use bonfire_comm::CommError;
use bonfire_data::DataError;
use bonfire_parallel::ParallelError;
use bonfire_tensor::TensorError;
use std::path::PathBuf;

/// Why training failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Happens when a recipe is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Happens when ranks that a program has started itself did not all finish.
    #[error("{reason}")]
    Spawn {
        /// What happened, and to which rank.
        reason: String,
    },
    /// Happens when two ranks were configured differently.
    #[error(
        "rank {rank} and rank 0 disagree on {what} \"{key}\": {rank_has} and {zero_has}; start all \
         ranks with the same configuration and data"
    )]
    RanksDisagree {
        /// First rank that differs from rank 0.
        rank: usize,
        /// Configuration or data.
        what: &'static str,
        /// First key that differs.
        key: String,
        /// That rank's value.
        rank_has: String,
        /// Rank 0's value.
        zero_has: String,
    },
    /// Happens when there is no sample for some rank.
    #[error(
        "{split} data has {samples} samples for {ranks} ranks; use at most as many ranks as samples"
    )]
    TooFewSamples {
        /// Training or validation.
        split: &'static str,
        /// Samples there are.
        samples: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Happens when an epoch has no whole batch.
    #[error(
        "an epoch of {samples} samples has no step: drop_last drops it, since it is smaller than \
         a batch of all ranks; use smaller batches or drop_last = false"
    )]
    NoSteps {
        /// Training samples there are.
        samples: usize,
    },
    /// Happens when a model with synchronised batch normalisation meets a batch that leaves a rank
    /// without samples.
    #[error(
        "the last batch of an epoch has {samples} samples for {ranks} ranks, but with synchronised \
         batch normalisation every rank needs one; use drop_last = true, another batch size, or a \
         normalisation that is not synchronised"
    )]
    RankWithoutSamples {
        /// Samples of the batch, over all ranks.
        samples: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Happens when a run ends before its warm-up.
    #[error(
        "the warm-up of the learning rate takes {warmup_steps} steps, the whole run {total_steps}: \
         it would never reach its rate; shorten schedule.warmup_steps or schedule.warmup_epochs, or \
         train longer"
    )]
    WarmupTooLong {
        /// Optimizer steps of the warm-up.
        warmup_steps: u64,
        /// Optimizer steps of the run.
        total_steps: u64,
    },
    /// Happens when the learning rate follows a validation figure that there is none of.
    #[error(
        "the schedule reduce_on_plateau watches \"{metric}\", and the validation has {}; set \
         schedule.metric to a figure that is validated", figures(.known)
    )]
    NothingToWatch {
        /// The figure that is missing.
        metric: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Happens when figures of classes are asked for, and the model tells no scores of classes.
    #[error(
        "train.metrics asks for figures of classes, and the model's validation_step gives no scores; add \
         StepOutput::with_scores there, or leave the figures out"
    )]
    NoScores,
    /// Happens when figures of classes cannot be computed.
    #[error(transparent)]
    Figures(#[from] bonfire_metrics::MetricError),
    /// Happens when Burn's learner gets a model whose synchronised batch normalisation would see this
    /// rank's batches alone.
    #[error(
        "the model has synchronised batch normalisation and no group; call \
         bonfire_nn::connect_sync_batchnorm(model, context.group()) before Learner::new"
    )]
    NotConnected,
    /// Happens when a setting made in code is impossible.
    #[error("{name} = {value}: {reason}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Happens when two callbacks would overwrite each other's part of a checkpoint.
    #[error(
        "two callbacks are called \"{name}\", and both have state or values to keep; give one \
         another name"
    )]
    CallbackNames {
        /// The name.
        name: String,
    },
    /// Happens when models are compared by a validation figure that there is none of.
    #[error(
        "{key} = \"{metric}\", and the validation has {}; set it to a figure that is validated",
        figures(.known)
    )]
    NothingToMonitor {
        /// The key that names the figure.
        key: &'static str,
        /// The figure that is missing.
        metric: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Happens when there is no room for checkpoints.
    #[error(
        "the disk of \"{folder}\" has {:.1} MiB for checkpoints, and the {count} that are kept and written at a \
         time need {:.1} MiB; free some, lower checkpoint.keep_last, or choose another folder",
        mebibytes(*.free), mebibytes(*.needed)
    )]
    NoRoom {
        /// Folder of the checkpoints.
        folder: PathBuf,
        /// Free bytes, those of checkpoints that are there already with them.
        free: u64,
        /// How many there may be at a time.
        count: u64,
        /// Their bytes.
        needed: u64,
    },
    /// Happens when a loss is infinite or not a number.
    #[error(
        "the loss is {loss} at step {step} (epoch {epoch}); lower the learning rate, or check the \
         data for impossible values; train.detect_anomaly = true ends the run at the first such value and \
         names its layer"
    )]
    LossNotFinite {
        /// Its value.
        loss: f64,
        /// Optimizer step, from 0.
        step: u64,
        /// Epoch, from 0.
        epoch: u64,
    },
    /// Happens with [`TrainerConfig::detect_anomaly`](crate::TrainerConfig::detect_anomaly) at the first value
    /// that is infinite or not a number.
    #[error("{0}")]
    Anomaly(Box<crate::Anomaly>),
    /// Happens when ranks end with different parameters: a fault of a device, or of Bonfire.
    #[error("rank {rank} ends with parameters {rank_has:016x}, rank 0 with {zero_has:016x}")]
    ParametersDiffer {
        /// First rank that differs from rank 0.
        rank: usize,
        /// Fingerprint of its parameters.
        rank_has: u64,
        /// Fingerprint of rank 0's parameters.
        zero_has: u64,
    },
    /// Happens when another rank failed at something that only it does.
    #[error("rank {rank} failed: {reason}")]
    OtherRank {
        /// That rank.
        rank: usize,
        /// Its error.
        reason: String,
    },
    /// Happens when a step's output cannot be read.
    #[error("reading the loss or a metric failed: {reason}")]
    ReadMetric {
        /// The device's own words.
        reason: String,
    },
    /// Happens when a file of the run cannot be read or written.
    #[error("{action} \"{path}\" failed: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Happens when a callback fails.
    #[error("callback \"{name}\" failed: {reason}")]
    Callback {
        /// The callback.
        name: String,
        /// Its reason.
        reason: String,
    },
    /// Happens when something needs this rank's context and the thread has none.
    #[error(
        "this thread has no rank; begin main with `let bonfire = bonfire::init()?;` and keep the \
         value until the end"
    )]
    NotInitialized,
    /// Happens when the data for validation are split over the ranks, and would be seen in part.
    #[error(
        "the validation loader is a DistributedLoader, but rank 0 validates on all samples; build \
         it with Burn's DataLoaderBuilder"
    )]
    ValidationSharded,
    /// Happens when a loader of Burn fails.
    #[error("the {split} loader failed: {reason}")]
    Loader {
        /// Training or validation.
        split: &'static str,
        /// Its reason.
        reason: String,
    },
    /// Happens when a part of Burn's learner cannot be given to all ranks.
    #[error("giving rank 0's {what} to all ranks failed: {reason}")]
    Record {
        /// Model, optimizer or learning rate scheduler.
        what: &'static str,
        /// Burn's reason.
        reason: String,
    },
    /// Happens when a checkpoint cannot be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Happens when data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Happens in the data-parallel layer.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// Happens when a collective fails.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl From<TensorError> for TrainError {
    fn from(error: TensorError) -> Self {
        Self::Parallel(error.into())
    }
}

impl From<AmpError> for TrainError {
    fn from(error: AmpError) -> Self {
        Self::Parallel(error.into())
    }
}

impl TrainError {
    /// Whether another rank failed first, and says so itself.
    pub fn is_of_another_rank(&self) -> bool {
        let cause = match self {
            Self::OtherRank { .. } => return true,
            Self::Comm(cause) | Self::Parallel(ParallelError::Comm(cause)) => cause,
            _ => return false,
        };
        matches!(cause, CommError::Poisoned { .. })
    }

    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

fn figures(known: &[String]) -> String {
    if known.is_empty() { "none".to_string() } else { known.join(", ") }
}

/// Bytes in MiB.
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
