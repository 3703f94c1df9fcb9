//! The parts of a run around its steps: epochs, validation, checkpoints, the end.

use crate::checkpoint::{self, Checkpoint, CheckpointError, MODEL_PREFIX, Manifest};
use crate::config::Budget;
use crate::evaluate::{evaluate, evaluate_variant};
use crate::learnable::{Learnable, StepContext};
use crate::metrics::Metrics;
use crate::position::Position;
use crate::run::Run;
use crate::{BatchSource, EpochEnd, FitReport, FitStart, TrainError, TrainerConfig, Variant};
use bonfire_amp::GradScaler;
use bonfire_comm::ProcessGroup;
use bonfire_data::Shard;
use bonfire_tensor::TensorError;
use bonfire_tensor::parameters::{self, Role};
use bonfire_tensor::state::{State, Stateful};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Length of a run over given data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Length {
    pub(crate) steps_per_epoch: u64,
    pub(crate) total_steps: u64,
}

impl Length {
    pub(crate) fn of<B: Send + 'static>(
        config: &TrainerConfig,
        train: &dyn BatchSource<Batch = B>,
        shard: Shard,
    ) -> Self {
        let batches = train.num_batches(shard) as u64;
        let steps_per_epoch = batches.div_ceil(config.accumulate_grad_batches.max(1) as u64);
        let total_steps = match config.budget {
            Budget::Epochs(epochs) => epochs.saturating_mul(steps_per_epoch),
            Budget::Steps(steps) => steps,
        };
        Self { steps_per_epoch, total_steps }
    }

    fn epochs(&self) -> u64 {
        self.total_steps.div_ceil(self.steps_per_epoch.max(1))
    }

    pub(crate) fn reached(&self, position: &Position) -> bool {
        position.step >= self.total_steps
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

    /// Trains through the rest of an epoch, unless the run ends or is stopped within it.
    pub(crate) fn epoch(
        &mut self,
        train: &dyn BatchSource<Batch = M::Batch>,
        length: Length,
    ) -> Result<(), TrainError> {
        let epoch = self.position.epoch;
        self.epoch_metrics = Metrics::default();
        self.notify(|callback| callback.on_epoch_start(epoch))?;
        let mut batches = train.batches(self.shard(), epoch, self.position.cursor)?;
        while batches.remaining() > 0 && !self.stopped && !length.reached(&self.position) {
            self.train_step(&mut batches)?;
            self.checkpoint_after_step()?;
        }
        let ended = batches.remaining() == 0;
        drop(batches);
        self.report_rest()?;
        let end = EpochEnd {
            epoch,
            step: self.position.step,
            learning_rate: self.learning_rate(),
            samples_per_second: self.samples_per_second(),
            train: self.epoch_metrics.clone(),
        };
        self.notify(|callback| callback.on_epoch_end(&end))?;
        if ended {
            self.position = Position { epoch: epoch + 1, cursor: 0, ..self.position };
        }
        Ok(())
    }

    /// Whether the last epoch was trained to its end.
    pub(crate) fn between_epochs(&self) -> bool {
        self.position.cursor == 0 && self.position.epoch > 0
    }

    /// Validates after an epoch if the configuration says so, and after the last one.
    pub(crate) fn validate_if_due(
        &mut self,
        valid: Option<&dyn BatchSource<Batch = M::Batch>>,
        length: Length,
    ) -> Result<(), TrainError> {
        let Some(valid) = valid else { return Ok(()) };
        let every = self.config.check_val_every_n_epochs;
        let due = every > 0 && self.position.epoch.is_multiple_of(every);
        if !due && !length.reached(&self.position) {
            return Ok(());
        }
        // The epoch that was trained last.
        let epoch = self.position.epoch - u64::from(self.position.cursor == 0);
        let step = self.position.step;
        self.notify(|callback| callback.on_validation_start(epoch))?;
        self.parallel.synchronize_buffers()?;
        let context = StepContext {
            device: self.device.clone(),
            input_dtype: self.precision.validation_inputs,
            ..self.context(0)
        };
        let model = self.parallel.consensus()?;
        let mut metrics = evaluate(&model, valid, &self.control, &context)?;
        for variant in self.variants()? {
            metrics.extend(evaluate_variant(&model, variant, valid, &self.control, &context)?);
        }
        self.notify(|callback| callback.on_validation_end(epoch, step, &metrics))?;
        self.adjust_rate(&metrics)?;
        self.valid_metrics = Some(metrics);
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

    fn checkpoint_after_step(&mut self) -> Result<(), TrainError> {
        match self.config.checkpoint.every_n_steps {
            Some(every) if every > 0 && self.position.step.is_multiple_of(every) => {
                self.save_checkpoint().map(drop)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn checkpoint_after_epoch(&mut self, length: Length) -> Result<(), TrainError> {
        let every = self.config.checkpoint.every_n_epochs;
        // The end of the run saves by itself.
        if every > 0 && self.position.epoch.is_multiple_of(every) && !length.reached(&self.position)
        {
            self.save_checkpoint()?;
        }
        Ok(())
    }

    /// Saves the run's state; rank 0 writes.
    ///
    /// # Collective
    /// All ranks.
    fn save_checkpoint(&mut self) -> Result<Option<PathBuf>, TrainError> {
        let Some(folder) = self.config.checkpoint_folder.clone() else { return Ok(None) };
        if let Some((position, place)) = &self.saved
            && *position == self.position
        {
            return Ok(place.clone());
        }
        self.parallel.synchronize_buffers()?;
        let state = self.state()?;
        let control = self.control.clone();
        let mut place = None;
        rank_zero_tells(&control, || {
            let checkpoint = Checkpoint { manifest: self.manifest(), state };
            let keep_last = self.config.checkpoint.keep_last;
            place = Some(checkpoint::save(&folder, checkpoint, keep_last)?);
            Ok(Vec::new())
        })?;
        self.saved = Some((self.position, place.clone()));
        Ok(place)
    }

    fn manifest(&self) -> Manifest {
        Manifest {
            format: Manifest::FORMAT,
            epoch: self.position.epoch,
            step: self.position.step,
            world_size: self.control.world_size(),
            configuration: self.entries.iter().cloned().collect(),
            files: Vec::new(),
        }
    }

    /// Everything that a continuation needs; on ranks other than 0 nothing of use.
    ///
    /// # Collective
    /// All ranks: parts of it lie on all of them.
    fn state(&mut self) -> Result<State, TrainError> {
        let optimizer = self.parallel.optimizer_state(self.optimizer.as_mut()).state()?;
        let exchange = self.parallel.exchange_state(self.optimizer.as_mut())?;
        let model = self.parallel.consensus()?;
        let mut state = State::default();
        if self.control.rank() > 0 {
            return Ok(state);
        }
        state.insert_under(MODEL_PREFIX, parameters::read(&model, |_| true)?);
        state.insert_under("optimizer", optimizer);
        state.insert_under("exchange", exchange);
        state.insert_under("position", self.position.state()?);
        if let Some(scaler) = &self.precision.scaler {
            state.insert_under("scaler", scaler.state()?);
        }
        state.insert_under("schedule", self.schedule.state()?);
        for callback in self.callbacks.iter_mut() {
            let name = format!("callback.{}", callback.name());
            if let Some(callback) = callback.stateful() {
                state.insert_under(&name, callback.state()?);
            }
        }
        Ok(state)
    }

    /// Continues from the configured checkpoint: rank 0 reads it and sends it to all.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn resume(&mut self) -> Result<(), TrainError> {
        let Some(path) = self.config.resume.clone() else { return Ok(()) };
        let bytes =
            rank_zero_tells(&self.control.clone(), || Ok(checkpoint::load(&path)?.to_bytes()?))?;
        let Checkpoint { manifest, mut state } = Checkpoint::from_bytes(&bytes)?;
        self.check_continuation(&manifest)?;
        self.parallel.load_state(state.take_under(MODEL_PREFIX))?;
        let (exchange, optimizer) = (state.take_under("exchange"), state.take_under("optimizer"));
        self.parallel.load_exchange_state(exchange, self.optimizer.as_mut(), optimizer)?;
        self.position.load_state(state.take_under("position"))?;
        if let Some(scaler) = &mut self.precision.scaler {
            scaler.load_state(state.take_under("scaler"))?;
        }
        self.schedule.load_state(state.take_under("schedule"))?;
        for callback in self.callbacks.iter_mut() {
            let part = state.take_under(&format!("callback.{}", callback.name()));
            if let Some(callback) = callback.stateful() {
                callback.load_state(part)?;
            }
        }
        tracing::info!(step = self.position.step, epoch = self.position.epoch, "resumed");
        Ok(())
    }

    fn check_continuation(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let running = self.control.world_size();
        if manifest.world_size != running {
            return Err(CheckpointError::WorldSize { saved: manifest.world_size, running });
        }
        let entries: BTreeMap<&str, &str> =
            self.entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        for (key, saved) in manifest.configuration.iter().filter(|(key, _)| continues(key)) {
            let running = entries.get(key.as_str()).copied().unwrap_or("not set");
            if running != saved {
                let (key, saved, running) = (key.clone(), saved.clone(), running.to_string());
                return Err(CheckpointError::Configuration { key, saved, running });
            }
        }
        Ok(())
    }

    /// Ends the run: a last checkpoint, equal parameters on all ranks, the report.
    pub(crate) fn finish(mut self) -> Result<FitReport<M>, TrainError> {
        let checkpoint = self.save_checkpoint()?;
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
            first_step_at: self.first_step_at,
            time_share: self.times.share(),
            bytes_sent,
            bytes_sent_per_step: bytes_sent as f64 / steps as f64,
            memory: self.parallel.memory(self.optimizer.as_ref()),
            parameters_xxh3,
            stopped: self.stopped,
            checkpoint,
        })
    }
}

/// Whether a resumed run must share a key with its checkpoint, to go on as if never interrupted.
fn continues(key: &str) -> bool {
    const KEYS: [&str; 5] = ["seed", "model", "data", "precision", "training"];
    let top = key.split('.').next().unwrap_or(key);
    const SINGLE: [&str; 3] =
        ["optimizer.kind", "optimizer.momentum_correction", "train.accumulate_grad_batches"];
    KEYS.contains(&top) || SINGLE.contains(&key)
}

/// Runs `f` on rank 0 and gives its result to every rank; its failure is an error on all of them.
fn rank_zero_tells(
    group: &ProcessGroup,
    f: impl FnOnce() -> Result<Vec<u8>, TrainError>,
) -> Result<Vec<u8>, TrainError> {
    if group.rank() == 0 {
        let result = f();
        let mut message = match &result {
            Ok(bytes) => bytes.clone(),
            Err(error) => error.to_string().into_bytes(),
        };
        message.insert(0, u8::from(result.is_ok()));
        group.broadcast_bytes(message, 0)?;
        return result;
    }
    let mut message = group.broadcast_bytes(Vec::new(), 0)?;
    if message.first() == Some(&1) {
        message.remove(0);
        return Ok(message);
    }
    let reason = String::from_utf8_lossy(message.get(1..).unwrap_or_default()).into_owned();
    Err(TrainError::OtherRank { rank: 0, reason })
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
