use crate::config::{
    Budget, CheckpointPlan, OptimizerPlan, Plan, RunLength, Schedule, SchedulePlan,
};
use crate::{Metrics, ProfileConfig, Resume, TrainError};
use bonfire_amp::{Clip, GradScalerConfig, MixedPrecision};
use bonfire_metrics::Figure;
use bonfire_parallel::{DataParallelConfig, ParameterGroups};
use std::path::PathBuf;

/// What [`Trainer`](crate::Trainer) needs to know, made in code or from a recipe's
/// [`Plan`].
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerConfig {
    /// Seed of everything random inside a step. Default 0.
    pub seed: u64,
    /// When training ends. Default 10 epochs.
    pub budget: Budget,
    /// Micro-batches per optimizer step. Default 1.
    pub accumulate_grad_batches: usize,
    /// Optimizer steps between two reports of metrics. Default 50.
    pub log_every_n_steps: u64,
    /// Epochs between two validations; 0 validates only at the end. Default 1.
    pub check_val_every_n_epochs: u64,
    /// Batches of each rank that a new run validates on before its first step, so that a validation that
    /// fails does so at once. Default 2.
    pub num_sanity_val_steps: u64,
    /// Whether every loss and gradient is looked at at once, and the output of every layer that tells it,
    /// so that the first value that is not finite ends the run with the name of its layer. Costs a pass over
    /// every output, and a wait for the device in every step. Default false.
    pub detect_anomaly: bool,
    /// Whether reports have the norm of the gradients (`grad_norm`) where nothing else measures it: one pass
    /// over the gradients in every step. Default false.
    pub log_grad_norm: bool,
    /// Optimizer steps between two histograms of every parameter and its gradient
    /// ([`Callback::on_histograms`](crate::Callback::on_histograms)); 0 for none. Default 0.
    pub histograms_every_n_steps: u64,
    /// Figures of classes that validations compute beside what the model reports. Default none.
    pub metrics: Vec<Figure>,
    /// The optimizer.
    pub optimizer: OptimizerPlan,
    /// The course of the learning rate. Default constant.
    pub schedule: SchedulePlan,
    /// Share of the target's probability that the training loss of an
    /// [`ImageClassifier`](bonfire_nn::ImageClassifier) spreads over all classes. Default 0.
    pub label_smoothing: f64,
    /// Settings of the data-parallel layer, mixed precision among them; the trainer sets its
    /// `reduction`.
    pub parallel: DataParallelConfig,
    /// Whether parameters stay in 32 bits in mixed precision. Default true.
    pub master_weights: bool,
    /// Scaling of the loss, where mixed precision needs it. Default: as PyTorch.
    pub scaler: GradScalerConfig,
    /// Bounds on gradients. Default none.
    pub clip: Option<Clip>,
    /// Whether cheap activations are computed again in the backward pass instead of being kept.
    /// Default false.
    pub gradient_checkpointing: bool,
    /// When checkpoints are made. Default: every epoch, the last 3 are kept.
    pub checkpoint: CheckpointPlan,
    /// Folder of the checkpoints. Default: none are made.
    pub checkpoint_folder: Option<PathBuf>,
    /// A checkpoint, a folder of checkpoints or a run folder to continue from.
    pub resume: Resume,
    /// Steps that are looked at closely. Default none.
    pub profile: Option<ProfileConfig>,
    /// What ranks compare before the first step, beside the data.
    pub agreement: Vec<(String, String)>,
}

impl TrainerConfig {
    /// Makes the default configuration around an optimizer.
    pub fn new(optimizer: OptimizerPlan) -> Self {
        Self {
            seed: 0,
            budget: Budget::Epochs(10),
            accumulate_grad_batches: 1,
            log_every_n_steps: 50,
            check_val_every_n_epochs: 1,
            num_sanity_val_steps: 2,
            detect_anomaly: false,
            log_grad_norm: false,
            histograms_every_n_steps: 0,
            metrics: Vec::new(),
            optimizer,
            schedule: SchedulePlan::default(),
            label_smoothing: 0.0,
            parallel: DataParallelConfig::default(),
            master_weights: true,
            scaler: GradScalerConfig::default(),
            clip: None,
            gradient_checkpointing: false,
            checkpoint: CheckpointPlan::default(),
            checkpoint_folder: None,
            resume: Resume::Never,
            profile: None,
            agreement: Vec::new(),
        }
    }

    /// Takes everything from a recipe's plan.
    pub fn from_plan(plan: &Plan) -> Self {
        let parallel = DataParallelConfig {
            parameter_groups: plan.parameter_groups.clone(),
            mixed_precision: plan.precision.mixed_precision(),
            ..plan.distributed.parallel()
        };
        Self {
            seed: plan.seed,
            budget: plan.train.budget,
            accumulate_grad_batches: plan.train.accumulate_grad_batches,
            log_every_n_steps: plan.train.log_every_n_steps,
            check_val_every_n_epochs: plan.train.check_val_every_n_epochs,
            num_sanity_val_steps: plan.train.num_sanity_val_steps,
            detect_anomaly: plan.train.detect_anomaly,
            log_grad_norm: plan.log.grad_norm,
            histograms_every_n_steps: plan.log.histograms_every_n_steps,
            metrics: plan.train.metrics.iter().map(|kind| (*kind).into()).collect(),
            schedule: plan.schedule.clone(),
            label_smoothing: plan.train.label_smoothing,
            parallel,
            master_weights: plan.precision.master_weights,
            scaler: plan.precision.scaler,
            clip: plan.clip,
            gradient_checkpointing: plan.train.gradient_checkpointing,
            checkpoint: plan.checkpoint.clone(),
            profile: plan.profile.clone().map(|steps| ProfileConfig {
                loader_workers: plan.data.workers,
                ..ProfileConfig::new(steps)
            }),
            agreement: plan.agreement_entries(),
            ..Self::new(plan.optimizer)
        }
    }

    /// Sets the seed.
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Trains for a number of epochs.
    pub fn with_max_epochs(self, epochs: u64) -> Self {
        Self { budget: Budget::Epochs(epochs), ..self }
    }

    /// Trains for a number of optimizer steps.
    pub fn with_max_steps(self, steps: u64) -> Self {
        Self { budget: Budget::Steps(steps), ..self }
    }

    /// Sets the micro-batches per optimizer step.
    pub fn with_accumulate_grad_batches(self, accumulate_grad_batches: usize) -> Self {
        Self { accumulate_grad_batches, ..self }
    }

    /// Sets the optimizer steps between two reports of metrics.
    pub fn with_log_every_n_steps(self, log_every_n_steps: u64) -> Self {
        Self { log_every_n_steps, ..self }
    }

    /// Has validations compute figures of classes, from [`StepOutput::scores`](crate::StepOutput::scores).
    pub fn with_metrics(self, metrics: impl Into<Vec<Figure>>) -> Self {
        Self { metrics: metrics.into(), ..self }
    }

    /// Runs forward and backward passes in 16 bits.
    pub fn with_mixed_precision(mut self, mixed_precision: MixedPrecision) -> Self {
        self.parallel.mixed_precision = Some(mixed_precision);
        self
    }

    /// Bounds gradients.
    pub fn with_clip(self, clip: Clip) -> Self {
        Self { clip: Some(clip), ..self }
    }

    /// Computes cheap activations again in the backward pass instead of keeping them.
    pub fn with_gradient_checkpointing(self, gradient_checkpointing: bool) -> Self {
        Self { gradient_checkpointing, ..self }
    }

    /// Makes checkpoints in a folder.
    pub fn with_checkpoints(self, folder: impl Into<PathBuf>) -> Self {
        Self { checkpoint_folder: Some(folder.into()), ..self }
    }

    /// Continues from a checkpoint, a folder of checkpoints or a run folder.
    pub fn with_resume(self, path: impl Into<PathBuf>) -> Self {
        Self { resume: Resume::From(path.into()), ..self }
    }

    /// Continues from the newest checkpoint of [`with_checkpoints`](Self::with_checkpoints)'s folder, if
    /// there is one.
    pub fn with_auto_resume(self) -> Self {
        Self { resume: Resume::Auto, ..self }
    }

    /// Ends the run at the first value that is not finite, and names its layer.
    pub fn with_detect_anomaly(self, detect_anomaly: bool) -> Self {
        Self { detect_anomaly, ..self }
    }

    /// Sets whether reports have the norm of the gradients.
    pub fn with_log_grad_norm(self, log_grad_norm: bool) -> Self {
        Self { log_grad_norm, ..self }
    }

    /// Sets the optimizer steps between two histograms of every parameter and its gradient.
    pub fn with_histograms_every_n_steps(self, histograms_every_n_steps: u64) -> Self {
        Self { histograms_every_n_steps, ..self }
    }

    /// Looks at some steps closely.
    pub fn with_profile(self, profile: ProfileConfig) -> Self {
        Self { profile: Some(profile), ..self }
    }

    /// Sets the course of the learning rate.
    pub fn with_schedule(self, schedule: SchedulePlan) -> Self {
        Self { schedule, ..self }
    }

    /// Gives some parameters settings of their own.
    pub fn with_parameter_groups(mut self, groups: ParameterGroups) -> Self {
        self.parallel.parameter_groups = groups;
        self
    }

    /// Sets the label smoothing of image classifiers, in [0, 1].
    pub fn with_label_smoothing(self, label_smoothing: f64) -> Self {
        Self { label_smoothing, ..self }
    }

    pub(crate) fn schedule(&self, length: RunLength) -> Schedule {
        Schedule::new(&self.schedule, self.optimizer.lr(), length)
    }

    /// Checks the settings that a recipe would have been checked for.
    ///
    /// # Errors
    /// [`TrainError::Setting`] for the first impossible one.
    pub fn validate(&self) -> Result<(), TrainError> {
        let (lr, smoothing) = (self.optimizer.lr(), self.label_smoothing);
        let start = self.schedule.warmup.start.factor(&self.schedule.scaling);
        for (name, value, ok, reason) in [
            ("learning rate", lr, lr.is_finite() && lr >= 0.0, "must be 0 or more"),
            ("label_smoothing", smoothing, (0.0..=1.0).contains(&smoothing), "must be from 0 to 1"),
            ("start_factor", start, start > 0.0 && start <= 1.0, "must be above 0 and at most 1"),
        ] {
            if !ok {
                return Err(TrainError::Setting { name, value: value.to_string(), reason });
            }
        }
        Ok(())
    }

    /// Checks that the schedule fits a run of a length, with or without validation.
    ///
    /// # Errors
    /// [`TrainError::WarmupTooLong`]; [`TrainError::NothingToWatch`].
    pub fn check_schedule(&self, length: RunLength, validates: bool) -> Result<(), TrainError> {
        let schedule = self.schedule(length);
        let (warmup_steps, total_steps) = (schedule.warmup_steps(), length.total_steps);
        if warmup_steps > total_steps {
            return Err(TrainError::WarmupTooLong { warmup_steps, total_steps });
        }
        match schedule.metric() {
            Some(metric) if !validates => {
                let (metric, known) = (metric.to_string(), Vec::new());
                Err(TrainError::NothingToWatch { metric, known })
            }
            _ => Ok(()),
        }
    }

    /// Checks that there is something to choose the best checkpoint by.
    ///
    /// # Errors
    /// [`TrainError::NothingToMonitor`].
    pub fn check_monitor(&self, validates: bool) -> Result<(), TrainError> {
        match &self.checkpoint.keep_best {
            Some(monitor) if !validates => {
                Err(monitor.missing("checkpoint.monitor", &Metrics::default()))
            }
            _ => Ok(()),
        }
    }

    /// What ranks compare when no recipe gave a list.
    pub(crate) fn entries(&self) -> Vec<(String, String)> {
        if !self.agreement.is_empty() {
            return self.agreement.clone();
        }
        vec![
            ("seed".to_string(), self.seed.to_string()),
            ("train.budget".to_string(), format!("{:?}", self.budget)),
            ("train.accumulate_grad_batches".to_string(), self.accumulate_grad_batches.to_string()),
            ("train.log_every_n_steps".to_string(), self.log_every_n_steps.to_string()),
            (
                "train.check_val_every_n_epochs".to_string(),
                self.check_val_every_n_epochs.to_string(),
            ),
            ("train.num_sanity_val_steps".to_string(), self.num_sanity_val_steps.to_string()),
            ("train.detect_anomaly".to_string(), self.detect_anomaly.to_string()),
            ("log.grad_norm".to_string(), self.log_grad_norm.to_string()),
            ("log.histograms_every_n_steps".to_string(), self.histograms_every_n_steps.to_string()),
            ("train.metrics".to_string(), format!("{:?}", self.metrics)),
            ("optimizer".to_string(), format!("{:?}", self.optimizer)),
            ("schedule".to_string(), format!("{:?}", self.schedule)),
            ("train.label_smoothing".to_string(), self.label_smoothing.to_string()),
            ("distributed".to_string(), format!("{:?}", self.parallel)),
            ("precision.master_weights".to_string(), self.master_weights.to_string()),
            ("precision.scaler".to_string(), format!("{:?}", self.scaler)),
            ("clip".to_string(), format!("{:?}", self.clip)),
            ("train.gradient_checkpointing".to_string(), self.gradient_checkpointing.to_string()),
            ("checkpoint".to_string(), format!("{:?}", self.checkpoint)),
            ("profile".to_string(), format!("{:?}", self.profile.as_ref().map(|it| &it.steps))),
        ]
    }
}
