//! The configuration as resolved for a world size.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use bonfire_parallel::ParameterGroups;

use super::average::{self, AveragePlan};
use super::batch_limit::BatchLimit;
use super::checkpoint::CheckpointPlan;
use super::clip;
use super::data::{self, DataSource};
use super::distributed::DistributedPlan;
use super::early_stopping::{self, EarlyStoppingPlan};
use super::error::ConfigError;
use super::fast_dev_run::FastDevRun;
use super::optimizer::OptimizerPlan;
use super::parameter_groups;
use super::precision::PrecisionPlan;
use super::profile;
use super::run_config::RunConfig;
use super::schedule::{LrScaling, RunLength, Schedule, SchedulePlan};
use super::sections::{DataSection, LogSection, ModelSection, Normalize};
use super::train::{DeviceKind, MetricKind, TrainSection};
use super::transforms::TransformsPlan;
use super::write_transforms;
use bonfire_amp::Clip;

/// A run's configuration with nothing left undecided; made by [`Plan::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the run.
    pub name: String,
    /// Seed of initialisation, sampling and augmentation.
    pub seed: u64,
    /// Number of ranks that the plan was resolved for.
    pub world_size: usize,
    /// The model.
    pub model: ModelPlan,
    /// The data.
    pub data: DataPlan,
    /// The length of the run.
    pub train: TrainPlan,
    /// The optimizer.
    pub optimizer: OptimizerPlan,
    /// Parameters with settings of their own.
    pub parameter_groups: ParameterGroups,
    /// The course of the learning rate.
    pub schedule: SchedulePlan,
    /// Number types of parameters and arithmetic.
    pub precision: PrecisionPlan,
    /// Bounds on gradients.
    pub clip: Option<Clip>,
    /// An average of the weights.
    pub average: Option<AveragePlan>,
    /// An end before the budget is used up.
    pub early_stopping: Option<EarlyStoppingPlan>,
    /// Communication between ranks.
    pub distributed: DistributedPlan,
    /// Checkpoints.
    pub checkpoint: CheckpointPlan,
    /// Printed progress.
    pub log: LogPlan,
    /// Optimizer steps that are measured closely.
    pub profile: Option<Range<u64>>,
}

/// Which model to train.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlan {
    /// Name of the model in the registry.
    pub kind: String,
    /// What the training begins with instead of new values.
    pub weights: Option<WeightsPlan>,
    /// The model's own keys, as written.
    pub keys: toml::Table,
}

/// Which weights a training begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsPlan {
    /// The file, on the machine of rank 0.
    pub path: PathBuf,
    /// Whether the module that gives the scores of the classes stays new.
    pub reset_head: bool,
}

/// Where samples come from and how many a step takes.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPlan {
    /// Which images.
    pub source: DataSource,
    /// Samples per rank and micro-batch.
    pub batch_size: usize,
    /// Samples per optimizer step over all ranks and micro-batches:
    /// `batch_size * world_size * accumulate_grad_batches`.
    pub global_batch_size: usize,
    /// Loader threads per rank; 0 loads on the training thread.
    pub workers: usize,
    /// Whether the incomplete last batch of an epoch is dropped.
    pub drop_last: bool,
    /// Normalisation of pixels; `None` leaves them in 0..1.
    pub normalize: Option<Normalize>,
    /// Batches that each loader thread makes ahead.
    pub prefetch_factor: usize,
    /// How long a rank waits for a batch that loader threads make.
    pub timeout: Duration,
    /// What becomes of training images and their batches.
    pub transforms: TransformsPlan,
    /// What becomes of validation images.
    pub valid_transforms: TransformsPlan,
}

/// When training ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// After this many passes over the training data.
    Epochs(u64),
    /// After this many optimizer steps.
    Steps(u64),
}

/// How long to train and how often to look.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainPlan {
    /// Where the model is trained.
    pub device: DeviceKind,
    /// When training ends.
    pub budget: Budget,
    /// Micro-batches per optimizer step.
    pub accumulate_grad_batches: usize,
    /// Optimizer steps between two rows of metrics.
    pub log_every_n_steps: u64,
    /// Epochs between two validations; 0 validates only at the end.
    pub check_val_every_n_epochs: u64,
    /// How many steps and batches of validation are tried, in a run that only tries.
    pub fast_dev_run: Option<u64>,
    /// Micro-batches of an epoch that each rank trains on.
    pub limit_train_batches: Option<BatchLimit>,
    /// Batches that each rank validates on.
    pub limit_val_batches: Option<BatchLimit>,
    /// Batches that every epoch trains and validates on.
    pub overfit_batches: Option<BatchLimit>,
    /// Batches of each rank that a new run validates on before its first step.
    pub num_sanity_val_steps: u64,
    /// Whether the first value that is not finite is looked for in every step.
    pub detect_anomaly: bool,
    /// Figures of classes that validations compute.
    pub metrics: Vec<MetricKind>,
    /// Whether cheap activations are computed again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Share of the target's probability that a classifier's training loss spreads over all classes.
    pub label_smoothing: f64,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlan {
    /// Time between two progress lines when the output is no terminal.
    pub interval: Duration,
    /// Whether each rank writes down which samples its steps have had.
    pub samples: bool,
    /// Whether there are event files for TensorBoard.
    pub tensorboard: bool,
    /// Whether there is a page with curves.
    pub report: bool,
    /// Whether rows have the norm of the gradients where nothing else measures it.
    pub grad_norm: bool,
    /// Optimizer steps between two histograms of parameters and gradients; 0 for none.
    pub histograms_every_n_steps: u64,
}

impl Plan {
    /// Returns the optimizer steps of one epoch over `num_samples` training samples.
    ///
    /// Each rank takes `ceil(num_samples / world_size)` samples (`floor` with `drop_last`) in
    /// micro-batches of `batch_size`, the last one incomplete (dropped with `drop_last`); a last
    /// window of fewer than `accumulate_grad_batches` micro-batches is a step too.
    pub fn steps_per_epoch(&self, num_samples: u64) -> u64 {
        let (world, batch) = (self.world_size.max(1) as u64, self.data.batch_size.max(1) as u64);
        let micro_batches = if self.data.drop_last {
            num_samples / world / batch
        } else {
            num_samples.div_ceil(world).div_ceil(batch)
        };
        let limit = self.train.overfit_batches.or(self.train.limit_train_batches);
        let micro_batches = limit.map_or(micro_batches, |limit| limit.of(micro_batches));
        micro_batches.div_ceil(self.train.accumulate_grad_batches.max(1) as u64)
    }

    /// Returns the optimizer steps of the whole run over `num_samples` training samples.
    pub fn total_steps(&self, num_samples: u64) -> u64 {
        match self.train.budget {
            Budget::Epochs(epochs) => epochs.saturating_mul(self.steps_per_epoch(num_samples)),
            Budget::Steps(steps) => steps,
        }
    }

    /// Returns the learning rates of a run over `num_samples` training samples.
    pub fn schedule(&self, num_samples: u64) -> Schedule {
        Schedule::new(&self.schedule, self.optimizer.lr(), self.run_length(num_samples))
    }

    /// Returns the length of a run over `num_samples` training samples.
    pub fn run_length(&self, num_samples: u64) -> RunLength {
        RunLength {
            steps_per_epoch: self.steps_per_epoch(num_samples),
            total_steps: self.total_steps(num_samples),
        }
    }

    /// Writes the plan as a configuration with every key given; resolved for the same world
    /// size, it gives the same plan.
    pub fn to_run_config(&self) -> RunConfig {
        RunConfig {
            name: Some(self.name.clone()),
            seed: Some(self.seed),
            model: ModelSection {
                kind: Some(self.model.kind.clone()),
                weights: self.model.weights.as_ref().map(|weights| weights.path.clone()),
                reset_head: self.model.weights.as_ref().map(|weights| weights.reset_head),
                keys: self.model.keys.clone(),
            },
            data: self.data_section(),
            train: self.train_section(),
            optimizer: parameter_groups::write_into(
                &self.parameter_groups,
                self.optimizer.to_section(),
            ),
            schedule: self.schedule.to_section(),
            precision: self.precision.to_section(),
            clip: clip::to_section(self.clip),
            average: average::to_section(self.average),
            early_stopping: early_stopping::to_section(self.early_stopping.as_ref()),
            distributed: self.distributed.to_section(),
            checkpoint: self.checkpoint.to_section(),
            log: LogSection {
                interval_s: Some(self.log.interval.as_secs_f64()),
                samples: Some(self.log.samples),
                tensorboard: Some(self.log.tensorboard),
                report: Some(self.log.report),
                grad_norm: Some(self.log.grad_norm),
                histograms_every_n_steps: Some(self.log.histograms_every_n_steps),
            },
            profile: profile::to_section(self.profile.as_ref()),
            ..RunConfig::default()
        }
    }

    /// Writes the plan as TOML for the run folder; loaded and resolved for the same world size,
    /// it gives the same plan.
    ///
    /// # Errors
    /// Happens when a path is no Unicode.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let body = self.to_run_config().to_toml()?;
        let (ranks, samples) = (self.world_size, self.data.global_batch_size);
        let scaled = match self.schedule.scaling {
            LrScaling::None => String::new(),
            scaling => format!("# The learning rates below are multiplied ({scaling}).\n"),
        };
        Ok(format!(
            "# Resolved for {ranks} rank(s): {samples} samples per optimizer step.\n{scaled}{body}"
        ))
    }

    fn data_section(&self) -> DataSection {
        DataSection {
            batch_size: Some(self.data.batch_size),
            global_batch_size: None,
            workers: Some(self.data.workers),
            drop_last: Some(self.data.drop_last),
            normalize: self.data.normalize.clone(),
            prefetch_factor: Some(self.data.prefetch_factor),
            timeout_s: Some(self.data.timeout.as_secs_f64()),
            transforms: write_transforms::to_section(&self.data.transforms),
            valid_transforms: write_transforms::to_valid_section(&self.data.valid_transforms),
            ..data::to_section(&self.data.source)
        }
    }

    fn train_section(&self) -> TrainSection {
        let (max_epochs, max_steps) = match self.train.budget {
            Budget::Epochs(epochs) => (Some(epochs), None),
            Budget::Steps(steps) => (None, Some(steps)),
        };
        TrainSection {
            device: Some(self.train.device),
            max_epochs,
            max_steps,
            accumulate_grad_batches: Some(self.train.accumulate_grad_batches),
            log_every_n_steps: Some(self.train.log_every_n_steps),
            check_val_every_n_epochs: Some(self.train.check_val_every_n_epochs),
            fast_dev_run: Some(FastDevRun(self.train.fast_dev_run)),
            limit_train_batches: self.train.limit_train_batches,
            limit_val_batches: self.train.limit_val_batches,
            overfit_batches: self.train.overfit_batches,
            num_sanity_val_steps: Some(self.train.num_sanity_val_steps),
            detect_anomaly: Some(self.train.detect_anomaly),
            metrics: Some(self.train.metrics.clone()),
            gradient_checkpointing: Some(self.train.gradient_checkpointing),
            label_smoothing: Some(self.train.label_smoothing),
        }
    }
}
