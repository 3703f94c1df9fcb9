//! What a checkpoint of a run holds, and when one is made.

use crate::TrainError;
use crate::checkpoint::{Checkpoint, Job, Keep, MODEL_PREFIX, Manifest};
use crate::config::OnError;
use crate::learnable::Learnable;
use crate::metrics::Metrics;
use crate::run::Run;
use crate::told::rank_zero_tells;
use bonfire_tensor::parameters;
use bonfire_tensor::state::{State, Stateful};
use std::path::PathBuf;
use std::time::Instant;

impl<M: Learnable> Run<'_, M> {
    /// Saves after a step if the number of steps, or rank 0's clock, says so.
    pub(crate) fn checkpoint_after_step(&mut self) -> Result<(), TrainError> {
        let every = self.config.checkpoint.every_n_steps.unwrap_or(0);
        let by_steps = every > 0 && self.position.step.is_multiple_of(every);
        if by_steps || std::mem::take(&mut self.save_now) {
            self.save_checkpoint(false)?;
        }
        Ok(())
    }

    /// Saves after an epoch if the number of epochs says so; the end of the run saves by itself.
    pub(crate) fn checkpoint_after_epoch(&mut self) -> Result<(), TrainError> {
        let every = self.config.checkpoint.every_n_epochs;
        if every > 0 && self.position.epoch.is_multiple_of(every) {
            self.save_checkpoint(false)?;
        }
        Ok(())
    }

    /// Saves after a validation that was better than all before, if the best is to be kept.
    pub(crate) fn checkpoint_if_best(&mut self, metrics: &Metrics) -> Result<(), TrainError> {
        let Some(monitor) = &self.config.checkpoint.keep_best else { return Ok(()) };
        let Some(value) = metrics.mean(&monitor.metric) else {
            return Err(monitor.missing("checkpoint.monitor", metrics));
        };
        let before = self.best.clone();
        if self.best.improves(value, monitor.mode) {
            self.best_before = before;
            self.save_checkpoint(true)?;
        }
        Ok(())
    }

    /// Whether rank 0's clock says that a checkpoint is due.
    pub(crate) fn is_due_by_clock(&self) -> bool {
        let every = self.config.checkpoint.every;
        self.config.checkpoint_folder.is_some()
            && self.control.rank() == 0
            && every.is_some_and(|every| self.last_save.elapsed() >= every)
    }

    /// Saves the run's state as it is now. Rank 0 writes, while training goes on; a failure is told
    /// by the next save.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn save_checkpoint(&mut self, best: bool) -> Result<(), TrainError> {
        let start = Instant::now();
        let saved = self.save_to_folder(best);
        self.times.note_checkpoint(start);
        saved
    }

    fn save_to_folder(&mut self, best: bool) -> Result<(), TrainError> {
        let Some(folder) = self.config.checkpoint_folder.clone() else { return Ok(()) };
        self.conclude()?;
        self.last_save = Instant::now();
        if self.saved == Some(self.position) && !best {
            return Ok(());
        }
        // What was measured before is told before, and a loss that is no number ends the run.
        if let Some(pending) = self.pending.take() {
            self.publish(pending)?;
        }
        self.parallel.synchronize_buffers()?;
        let state = self.state()?;
        // A device may have gone on with what a collective that was given up has left.
        if let Some(failure) = self.control.failure() {
            return Err(failure.into());
        }
        let control = self.control.clone();
        let best_lost = rank_zero_tells(&control, || {
            let mut best_lost = false;
            if let Some(failure) = self.writer.failure() {
                if self.config.checkpoint.on_error == OnError::Stop {
                    return Err(failure.error.into());
                }
                best_lost = failure.best;
            }
            let checkpoint = Checkpoint { manifest: self.manifest(), state };
            let keep = Keep { last: self.config.checkpoint.keep_last, best };
            self.writer.start(Job { folder, checkpoint, keep });
            if !self.config.checkpoint.asynchronous {
                self.writer.wait();
            }
            Ok(vec![u8::from(best_lost)])
        })?;
        if best_lost == [1] {
            // The next validation has to beat what is on the disk.
            self.best = self.best_before.clone();
        }
        self.saved = Some(self.position);
        self.saved_as_best = best;
        Ok(())
    }

    /// Saves the end of a run, and waits until it is on the disk; returns the newest checkpoint (on
    /// rank 0). What could not be written is tried once more.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// When it cannot be written and the run was stopped, and so has nothing else to show, or
    /// failures end runs.
    pub(crate) fn save_end(&mut self) -> Result<Option<PathBuf>, TrainError> {
        self.save_checkpoint(false)?;
        if self.await_checkpoint(false)?.is_none() && self.config.checkpoint_folder.is_some() {
            self.saved = None;
            self.save_checkpoint(self.saved_as_best)?;
        }
        let wanted = self.stopped || self.config.checkpoint.on_error == OnError::Stop;
        Ok(self.await_checkpoint(wanted)?.flatten())
    }

    /// Waits for what is being written: `None` if it failed, and else, on rank 0, the newest.
    ///
    /// # Collective
    /// All ranks.
    fn await_checkpoint(&mut self, wanted: bool) -> Result<Option<Option<PathBuf>>, TrainError> {
        let mut place = None;
        let control = self.control.clone();
        let failed = rank_zero_tells(&control, || {
            place = self.writer.wait();
            match self.writer.failure() {
                Some(failure) if wanted => Err(failure.error.into()),
                failure => Ok(vec![u8::from(failure.is_some())]),
            }
        })?;
        Ok((failed != [1]).then_some(place))
    }

    pub(crate) fn manifest(&self) -> Manifest {
        Manifest {
            format: Manifest::FORMAT,
            epoch: self.position.epoch,
            step: self.position.step,
            serial: 0,
            world_size: self.control.world_size(),
            configuration: self.entries.iter().cloned().collect(),
            files: Vec::new(),
            checksum: String::new(),
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
        match self.control.rank() {
            0 => self.combined_state(&model, optimizer, exchange),
            _ => Ok(State::default()),
        }
    }

    /// The same from this rank alone; `None` where parts of it lie on others.
    pub(crate) fn state_of_this_rank(&mut self) -> Result<Option<State>, TrainError> {
        let Some(exchange) = self.parallel.replicated_exchange_state() else { return Ok(None) };
        let optimizer = self.parallel.optimizer_state(self.optimizer.as_mut()).state()?;
        let model = self.parallel.model().clone();
        Ok(Some(self.combined_state(&model, optimizer, exchange)?))
    }

    fn combined_state(
        &mut self,
        model: &M,
        optimizer: State,
        exchange: State,
    ) -> Result<State, TrainError> {
        let mut state = State::default();
        state.insert_under(MODEL_PREFIX, parameters::read(model, |_| true)?);
        state.insert_under("optimizer", optimizer);
        state.insert_under("exchange", exchange);
        state.insert_under("position", self.position.state()?);
        state.insert_under("best", self.best.state()?);
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
}
