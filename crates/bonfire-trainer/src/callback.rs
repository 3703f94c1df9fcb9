use crate::{Histograms, Metrics, RankFigures, TrainError};
use bonfire_parallel::ModelValues;
use bonfire_tensor::state::{State, Stateful};

/// What is known when a run starts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FitStart {
    /// This process in the group.
    pub rank: usize,
    /// Processes in the group.
    pub world_size: usize,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Optimizer steps of an epoch.
    pub steps_per_epoch: u64,
    /// Optimizer steps of the whole run.
    pub total_steps: u64,
    /// Optimizer steps already taken, after a resume.
    pub first_step: u64,
    /// Trainable and frozen parameters and buffers, in elements.
    pub num_parameters: usize,
}

/// A micro-batch of this rank is about to be run.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct BatchStart<'a> {
    /// Pass over the training data, from 0.
    pub epoch: u64,
    /// Optimizer step that it belongs to, from 0.
    pub step: u64,
    /// Micro-batch of the step, from 0.
    pub micro_batch: usize,
    /// Indices of its samples in the data set, padding left out; empty where this rank has none.
    pub indices: &'a [usize],
}

/// An optimizer step was taken, or skipped.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StepEnd {
    /// Pass over the training data, from 0.
    pub epoch: u64,
    /// Steps taken, with this one.
    pub step: u64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Samples of this step over all ranks.
    pub samples: u64,
    /// Samples per second over all ranks since the run or its resume began.
    pub samples_per_second: f64,
    /// Norm of the unscaled gradients before clipping, where they are clipped or the loss is scaled,
    /// unless the step was skipped.
    pub grad_norm: Option<f64>,
    /// Whether an overflow kept the step from the parameters.
    pub skipped: bool,
    /// Whether the epoch has no step after this one.
    pub last_of_epoch: bool,
}

/// Training figures over all ranks, every `log_every_n_steps` steps.
///
/// A report comes when the next one is due, or the epoch ends: ranks reduce figures while training
/// goes on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// Pass over the training data, from 0.
    pub epoch: u64,
    /// Steps taken when the figures were summed.
    pub step: u64,
    /// Learning rate of that step.
    pub learning_rate: f64,
    /// Samples per second over all ranks since the run or its resume began.
    pub samples_per_second: f64,
    /// Figures since the report before.
    pub metrics: Metrics,
    /// What each rank has done since then, in the order of the ranks.
    pub ranks: Vec<RankFigures>,
}

impl Report {
    /// Samples per second over all ranks since the report before.
    pub fn interval_samples_per_second(&self) -> f64 {
        let samples: f64 = self.ranks.iter().map(|rank| rank.samples).sum();
        let seconds = self.ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max);
        if seconds > 0.0 { samples / seconds } else { 0.0 }
    }
}

/// An epoch ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EpochEnd {
    /// Pass over the training data, from 0.
    pub epoch: u64,
    /// Steps taken so far.
    pub step: u64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Samples per second over all ranks since the run or its resume began.
    pub samples_per_second: f64,
    /// Training figures of the epoch over all ranks (after a resume in mid-epoch: of its rest).
    pub train: Metrics,
}

/// Other values for the parameters and buffers of the model that trains: averages, for example.
///
/// Validations evaluate the model with them too, and report the figures with the name before
/// theirs (`ema_loss`).
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// A word that file names and figures can bear; each variant of a run has its own.
    pub name: String,
    /// Values by module path, in the types of the model. What is not there stays the model's own.
    pub values: State,
}

/// Something that follows a run. Called on every rank, in the order in which callbacks were added.
///
/// Methods must not call collectives on the trainer's group unless every rank does. An error ends
/// the run on all ranks.
pub trait Callback: Send {
    /// Its name in messages and, if it has state, in checkpoints.
    fn name(&self) -> &str;

    /// Before the first step.
    ///
    /// # Errors
    /// Ends the run.
    fn on_fit_start(&mut self, _fit: &FitStart) -> Result<(), TrainError> {
        Ok(())
    }

    /// Before the first step of an epoch, or of its rest after a resume.
    ///
    /// # Errors
    /// Ends the run.
    fn on_epoch_start(&mut self, _epoch: u64) -> Result<(), TrainError> {
        Ok(())
    }

    /// Before an optimizer step, counted from 0.
    ///
    /// # Errors
    /// Ends the run.
    fn on_step_start(&mut self, _epoch: u64, _step: u64) -> Result<(), TrainError> {
        Ok(())
    }

    /// Before a micro-batch is run.
    ///
    /// # Errors
    /// Ends the run.
    fn on_batch_start(&mut self, _start: &BatchStart<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    /// After an optimizer step.
    ///
    /// # Errors
    /// Ends the run.
    fn on_step_end(&mut self, _end: &StepEnd) -> Result<(), TrainError> {
        Ok(())
    }

    /// After [`on_step_end`](Self::on_step_end), with the values of the model. Not after the local
    /// steps of [`LocalSgd`](bonfire_parallel::LocalSgd): the values are the same on all ranks.
    ///
    /// # Errors
    /// Ends the run.
    fn on_values(&mut self, _values: &ModelValues<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    /// Other values to evaluate and to keep beside the model's own. Asked for at each validation and
    /// at the end; all ranks answer alike.
    ///
    /// # Errors
    /// Ends the run.
    fn variant(&self) -> Result<Option<Variant>, TrainError> {
        Ok(None)
    }

    /// When the values of parameters and gradients were counted
    /// ([`TrainerConfig::histograms_every_n_steps`](crate::TrainerConfig::histograms_every_n_steps)); on rank 0
    /// only.
    ///
    /// # Errors
    /// Ends the run.
    fn on_histograms(&mut self, _histograms: &Histograms) -> Result<(), TrainError> {
        Ok(())
    }

    /// When training figures over all ranks are there.
    ///
    /// # Errors
    /// Ends the run.
    fn on_report(&mut self, _report: &Report) -> Result<(), TrainError> {
        Ok(())
    }

    /// After the last step of an epoch, before validation.
    ///
    /// # Errors
    /// Ends the run.
    fn on_epoch_end(&mut self, _end: &EpochEnd) -> Result<(), TrainError> {
        Ok(())
    }

    /// Before validation.
    ///
    /// # Errors
    /// Ends the run.
    fn on_validation_start(&mut self, _epoch: u64) -> Result<(), TrainError> {
        Ok(())
    }

    /// After validation, with its figures over all ranks.
    ///
    /// # Errors
    /// Ends the run.
    fn on_validation_end(
        &mut self,
        _epoch: u64,
        _step: u64,
        _metrics: &Metrics,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    /// Whether training has come far enough. Asked for after each validation and after a resume; one
    /// rank that says so ends the run on all of them, as if its budget were used up.
    fn is_satisfied(&self) -> bool {
        false
    }

    /// After the last step of the run, finished or stopped.
    ///
    /// # Errors
    /// Ends the run.
    fn on_fit_end(&mut self) -> Result<(), TrainError> {
        Ok(())
    }

    /// When the run fails; the error is returned from `fit` afterwards.
    fn on_exception(&mut self, _error: &TrainError) {}

    /// The state that a checkpoint keeps, if the callback has any.
    fn stateful(&mut self) -> Option<&mut dyn Stateful> {
        None
    }
}
