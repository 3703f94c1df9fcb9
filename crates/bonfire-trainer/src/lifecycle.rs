//! The parts of a run around its steps: epochs, validation, checkpoints, the end.

use crate::Resume;
use crate::config::Budget;
use crate::evaluate::{Evaluation, Examination};
use crate::learnable::{Learnable, StepContext};
use crate::metrics::{Metrics, gather_figures};
use crate::position::Position;
use crate::run::Run;
use crate::{BatchSource, EpochEnd, FitReport, FitStart, TrainError, TrainerConfig, Variant};
use bonfire_amp::GradScaler;
use bonfire_comm::{ProcessGroup, ReduceOp};
use bonfire_data::Shard;
use bonfire_tensor::TensorError;
use bonfire_tensor::parameters::Role;
use bonfire_tensor::state::State;

/// Length of a run over given data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Length {
    pub(crate) steps_per_epoch: u64,
    pub(crate) total_steps: u64,
    budget: Budget,
}

impl Length {
    pub(crate) fn of<B: Send + 'static>(
        config: &TrainerConfig,
        train: &dyn BatchSource<Batch = B>,
        shard: Shard,
    ) -> Self {
        let batches = train.num_batches(shard) as u64;
        let steps_per_epoch = batches.div_ceil(config.accumulate_grad_batches.max(1) as u64);
        Self::new(steps_per_epoch, config.budget)
    }

    pub(crate) fn new(steps_per_epoch: u64, budget: Budget) -> Self {
        let total_steps = match budget {
            Budget::Epochs(epochs) => epochs.saturating_mul(steps_per_epoch),
            Budget::Steps(steps) => steps,
        };
        Self { steps_per_epoch, total_steps, budget }
    }

    /// Whether a number of epochs was asked for.
    pub(crate) fn is_in_epochs(&self) -> bool {
        matches!(self.budget, Budget::Epochs(_))
    }

    fn epochs(&self) -> u64 {
        self.total_steps.div_ceil(self.steps_per_epoch.max(1))
    }

    pub(crate) fn reached(&self, position: &Position) -> bool {
        // A resume may change how many steps an epoch has.
        match self.budget {
            Budget::Epochs(epochs) => position.epoch >= epochs,
            Budget::Steps(steps) => position.step >= steps,
        }
    }
}

impl<M: Learnable> Run<'_, M> {
    pub(crate) fn fit_start(&self, length: Length) -> FitStart {
        FitStart {
            rank: self.control.rank(),
            world_size: self.control.world_size(),
            epochs: length.epochs(),
            steps_per_epoch: length.steps_per_epoch,
            total_steps: length.total_steps,
            first_step: self.first_step,
            num_parameters: self.parallel.specs().iter().map(|spec| spec.num_elements()).sum(),
        }
    }

    /// Trains and validates until the end, or until the run is stopped.
    pub(crate) fn train(
        &mut self,
        train: &dyn BatchSource<Batch = M::Batch>,
        valid: Option<&dyn BatchSource<Batch = M::Batch>>,
        length: Length,
    ) -> Result<(), TrainError> {
        self.settle()?;
        if self.config.resume != Resume::Never {
            self.ask_whether_satisfied()?;
        }
        if let (Some(valid), 0) = (valid, self.first_step) {
            self.try_validation(valid)?;
        }
        if self.position.unvalidated || self.has_ended(length) {
            // Resumed at its end: there are figures to report all the same.
            self.validate_if_due(valid, length)?;
        }
        while !self.stopped && !self.has_ended(length) {
            self.epoch(train, length)?;
            // A run stopped in an epoch's last step is validated like any other.
            if self.position.unvalidated || self.has_ended(length) {
                self.validate_if_due(valid, length)?;
            }
            if !self.stopped && !self.has_ended(length) {
                self.checkpoint_after_epoch()?;
            }
        }
        self.stopped &= !self.has_ended(length);
        self.stopped_early = self.satisfied && !length.reached(&self.position);
        Ok(())
    }

    fn has_ended(&self, length: Length) -> bool {
        self.satisfied || length.reached(&self.position)
    }

    /// Trains through the rest of an epoch, unless the run ends or is stopped within it.
    fn epoch(
        &mut self,
        train: &dyn BatchSource<Batch = M::Batch>,
        length: Length,
    ) -> Result<(), TrainError> {
        let epoch = self.position.epoch;
        self.epoch_metrics = Metrics::default();
        self.notify(|callback| callback.on_epoch_start(epoch))?;
        let mut batches = train.batches(self.shard(), epoch, self.position.cursor)?;
        while batches.remaining() > 0 && !self.stopped && !length.reached(&self.position) {
            self.begin_profile();
            self.train_step(&mut batches)?;
            self.checkpoint_after_step()?;
            self.profile_step()?;
        }
        self.conclude()?;
        let ended = batches.remaining() == 0;
        drop(batches);
        self.report_rest()?;
        self.settled = None;
        let end = EpochEnd {
            epoch,
            step: self.position.step,
            learning_rate: self.learning_rate(),
            samples_per_second: self.samples_per_second(),
            train: self.epoch_metrics.clone(),
        };
        self.notify(|callback| callback.on_epoch_end(&end))?;
        if ended {
            self.position =
                Position { epoch: epoch + 1, cursor: 0, unvalidated: true, ..self.position };
        }
        self.settle()
    }

    /// Validates after an epoch if the configuration says so, and after the last one.
    fn validate_if_due(
        &mut self,
        valid: Option<&dyn BatchSource<Batch = M::Batch>>,
        length: Length,
    ) -> Result<(), TrainError> {
        let every = self.config.check_val_every_n_epochs;
        let due = every > 0 && self.position.epoch.is_multiple_of(every);
        if let Some(valid) = valid
            && (due || length.reached(&self.position))
        {
            self.validate(valid)?;
        }
        self.position.unvalidated = false;
        self.settle()
    }

    fn validate(&mut self, valid: &dyn BatchSource<Batch = M::Batch>) -> Result<(), TrainError> {
        // The epoch that was trained last.
        let epoch = self.position.epoch - u64::from(self.position.cursor == 0);
        let step = self.position.step;
        self.notify(|callback| callback.on_validation_start(epoch))?;
        self.parallel.synchronize_buffers()?;
        let context = self.validation_context();
        let model = self.parallel.consensus()?;
        let variants = self.variants()?;
        let examination = self.examination(valid, &context, usize::MAX);
        let Evaluation { mut metrics, confusion_matrix } = examination.evaluate(&model)?;
        for variant in variants {
            metrics.extend(examination.evaluate_variant(&model, variant)?);
        }
        self.confusion_matrix = confusion_matrix;
        self.settled = None;
        self.notify(|callback| callback.on_validation_end(epoch, step, &metrics))?;
        self.adjust_rate(&metrics)?;
        self.ask_whether_satisfied()?;
        self.position.unvalidated = false;
        self.checkpoint_if_best(&metrics)?;
        self.valid_metrics = Some(metrics);
        Ok(())
    }

    /// Validates on a few batches, only to see that it can be done.
    fn try_validation(
        &mut self,
        valid: &dyn BatchSource<Batch = M::Batch>,
    ) -> Result<(), TrainError> {
        let limit = usize::try_from(self.config.num_sanity_val_steps).unwrap_or(usize::MAX);
        if limit > 0 {
            let context = self.validation_context();
            let model = self.parallel.consensus()?;
            self.examination(valid, &context, limit).evaluate(&model)?;
        }
        Ok(())
    }

    fn validation_context(&self) -> StepContext {
        StepContext {
            device: self.device.clone(),
            input_dtype: self.precision.validation_inputs,
            ..self.context(0)
        }
    }

    fn examination<'a>(
        &'a self,
        data: &'a dyn BatchSource<Batch = M::Batch>,
        context: &'a StepContext,
        limit: usize,
    ) -> Examination<'a, M::Batch> {
        let figures = self.config.metrics.as_slice();
        Examination { data, group: &self.control, context, figures, limit }
    }

    /// Asks the callbacks of all ranks whether training has come far enough.
    ///
    /// # Collective
    /// All ranks.
    fn ask_whether_satisfied(&mut self) -> Result<(), TrainError> {
        let own = self.callbacks.iter().any(|callback| callback.is_satisfied());
        let mut votes = [u8::from(own)];
        self.control.all_reduce(&mut votes, ReduceOp::Max)?;
        self.satisfied = votes[0] > 0;
        Ok(())
    }

    /// Other values of the model that callbacks keep, the same on all ranks.
    ///
    /// # Collective
    /// All ranks.
    fn variants(&self) -> Result<Vec<Variant>, TrainError> {
        let variants = self.callbacks.iter().map(|callback| callback.variant());
        let mut variants: Vec<Variant> =
            variants.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        for variant in &mut variants {
            self.share_buffers(variant)?;
        }
        Ok(variants)
    }

    /// Takes rank 0's values of the buffers, which differ where each rank normalises its own batch.
    fn share_buffers(&self, variant: &mut Variant) -> Result<(), TrainError> {
        let mut buffers = State::default();
        for spec in self.parallel.specs().iter().filter(|spec| spec.role == Role::Buffer) {
            if let Some(value) = variant.values.tensors.get(&spec.path) {
                buffers.tensors.insert(spec.path.clone(), value.clone());
            }
        }
        if self.control.world_size() > 1 && !buffers.tensors.is_empty() {
            let own = if self.control.rank() == 0 { buffers.to_bytes() } else { Vec::new() };
            let bytes = self.control.broadcast_bytes(own, 0)?;
            let shared = State::from_bytes(&bytes).map_err(TensorError::from)?;
            variant.values.tensors.extend(shared.tensors);
        }
        Ok(())
    }

    /// Shows the schedule the figure that it watches, if it watches one.
    fn adjust_rate(&mut self, metrics: &Metrics) -> Result<(), TrainError> {
        let Some(metric) = self.schedule.metric() else { return Ok(()) };
        match metrics.mean(metric) {
            Some(value) => {
                self.schedule.observe(value);
                Ok(())
            }
            None => {
                let known = metrics.0.iter().map(|value| value.name.clone()).collect();
                Err(TrainError::NothingToWatch { metric: metric.to_string(), known })
            }
        }
    }

    /// Ends the run: a last checkpoint, equal parameters on all ranks, the report.
    pub(crate) fn finish(mut self) -> Result<FitReport<M>, TrainError> {
        self.end_profile()?;
        self.miss_profile();
        let checkpoint = self.save_end()?;
        self.parallel.synchronize_buffers()?;
        let drifted = self.parallel.drifts();
        self.parallel.agree()?;
        if drifted {
            self.show_agreed_values()?;
        }
        let parameters_xxh3 = self.parallel.fingerprint()?;
        check_fingerprints(&self.control, self.parallel.whole_fingerprint()?)?;
        let variants = self.variants()?;
        self.notify(|callback| callback.on_fit_end())?;
        // No rank reports success before all of them have come this far.
        self.control.barrier()?;
        let own = self.times.figures().with_usage(self.usage.total());
        let ranks = gather_figures(&self.control, own)?;
        let bytes_sent = self.parallel.bytes_sent();
        let steps = self.position.step.saturating_sub(self.first_step).max(1);
        Ok(FitReport {
            model: self.parallel.model().clone(),
            variants,
            world_size: self.control.world_size(),
            epochs: self.position.epoch,
            steps: self.position.step,
            skipped_steps: self.precision.scaler.as_ref().map(GradScaler::skipped_steps),
            samples_per_second: self.samples_per_second(),
            train: self.epoch_metrics,
            valid: self.valid_metrics,
            confusion_matrix: self.confusion_matrix,
            first_step_at: self.first_step_at,
            time_share: self.times.figures().share,
            ranks,
            verdict: self.verdict,
            bytes_sent,
            bytes_sent_per_step: bytes_sent as f64 / steps as f64,
            memory: self.parallel.memory(self.optimizer.as_ref()),
            parameters_xxh3,
            stopped: self.stopped,
            stopped_early: self.stopped_early,
            checkpoint,
        })
    }
}

pub(crate) fn check_fingerprints(group: &ProcessGroup, own: u64) -> Result<(), TrainError> {
    let mut all = vec![0i64; group.world_size()];
    group.all_gather(&[own as i64], &mut all)?;
    let zero_has = all.first().map_or(own, |value| *value as u64);
    match all.iter().position(|value| *value as u64 != zero_has) {
        Some(rank) => {
            let rank_has = all[rank] as u64;
            Err(TrainError::ParametersDiffer { rank, rank_has, zero_has })
        }
        None => Ok(()),
    }
}
