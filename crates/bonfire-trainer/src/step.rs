//! One optimizer step, top to bottom.

use crate::learnable::Learnable;
use crate::run::Run;
use crate::settled::{Begun, Ending};
use crate::timing::Part;
use crate::{BatchStart, StepEnd, StepOutput, TrainError};
use bonfire_amp::Clip;
use bonfire_data::{Batches, LoadedBatch};
use bonfire_nn::{Watch, watch_layers};
use bonfire_parallel::{StepInProgress, StepOptions, StepReport};
use std::time::SystemTime;
use xxhash_rust::xxh3::xxh3_64;

impl<M: Learnable> Run<'_, M> {
    /// Takes one optimizer step over the next window of micro-batches.
    pub(crate) fn train_step(&mut self, batches: &mut Batches<M::Batch>) -> Result<(), TrainError> {
        let (epoch, step) = (self.position.epoch, self.position.step);
        self.times.begin_step(step);
        self.notify(|callback| callback.on_step_start(epoch, step))?;

        let mut samples = 0;
        let micro_batches = self.config.accumulate_grad_batches.min(batches.remaining());
        for index in 0..micro_batches {
            self.times.begin_micro_batch(index);
            let Some(batch) = self.times.time(Part::Data, || batches.next()) else { break };
            let batch = batch?;
            samples += batch.global_samples as u64;
            let own = batch.padding_mask.iter().filter(|padding| !**padding).count();
            self.times.count_samples(own);
            self.show_batch(&batch, index)?;
            self.position.cursor = batch.cursor_after;
            self.micro_batch(batch, index, index + 1 == micro_batches)?;
        }
        self.times.time(Part::CommWait, || self.parallel.synchronize())?;
        if self.config.detect_anomaly {
            self.check_gradients()?;
        }
        self.count_values()?;
        // By now a device has long found out what became of the step before.
        self.conclude()?;
        let learning_rate = self.schedule.lr(self.position.scheduled);
        if let Some(momentum) = self.schedule.momentum(self.position.scheduled) {
            self.optimizer.set_momentum(momentum)?;
        }
        self.settled = None;
        let begun = self.optimizer_step(learning_rate)?;
        self.local.close_window();
        self.position.advance();
        self.samples += samples;
        (self.stopped, self.save_now) = read_votes(begun.votes());
        self.first_step_at.get_or_insert_with(SystemTime::now);
        let last_of_epoch = batches.remaining() == 0;
        let reports = self.position.step.is_multiple_of(self.config.log_every_n_steps.max(1));
        let waits = begun.is_known() || reports || last_of_epoch || self.stopped || self.save_now;
        let end = Ending {
            position: self.position,
            buffers: self.buffers()?,
            learning_rate,
            samples,
            reports: reports && !last_of_epoch,
            last_of_epoch,
        };
        self.begun = Some(Begun { step: begun, end });
        self.times.end_step();
        if waits { self.conclude() } else { Ok(()) }
    }

    /// Learns what became of the step that was begun last, and tells the callbacks. On a device that
    /// is known when it has come so far, for which no step waits.
    pub(crate) fn conclude(&mut self) -> Result<(), TrainError> {
        let Some(begun) = self.begun.take() else { return Ok(()) };
        let (ending, done) = self.resolve(begun)?;
        if ending.reports {
            self.report()?;
        }
        let end = StepEnd {
            epoch: ending.position.epoch,
            step: ending.position.step,
            learning_rate: ending.learning_rate,
            samples: ending.samples,
            samples_per_second: self.samples_per_second(),
            grad_norm: done.grad_norm,
            skipped: done.skipped,
            last_of_epoch: ending.last_of_epoch,
        };
        self.notify(|callback| callback.on_step_end(&end))?;
        self.show_values()?;
        self.settle_at(ending.position, ending.buffers);
        Ok(())
    }

    /// Brings the books up to date with what became of a step.
    pub(crate) fn resolve(&mut self, begun: Begun) -> Result<(Ending, StepReport), TrainError> {
        let Begun { step, mut end } = begun;
        let scaler = self.precision.scaler.as_mut();
        let (parallel, optimizer) = (&mut self.parallel, self.optimizer.as_mut());
        let done =
            self.times.time(Part::Optimizer, || parallel.conclude(step, optimizer, scaler))?;
        self.local.end_window(done.skipped);
        if self.precision.scaler.is_some() || self.clip().is_some() {
            self.local.add_step("grad_norm", done.grad_norm);
        }
        if self.precision.scaler.is_some() {
            self.local.add_step("skipped", Some(if done.skipped { 1.0 } else { 0.0 }));
        }
        if done.skipped {
            self.position.take_back();
            end.position.take_back();
        }
        Ok((end, done))
    }

    /// Shows the callbacks a micro-batch before it is run.
    fn show_batch(
        &mut self,
        batch: &LoadedBatch<M::Batch>,
        micro_batch: usize,
    ) -> Result<(), TrainError> {
        if self.callbacks.is_empty() {
            return Ok(());
        }
        let real = batch.indices.iter().zip(&batch.padding_mask).filter(|(_, padding)| !**padding);
        let indices: Vec<usize> = real.map(|(index, _)| *index).collect();
        let (epoch, step) = (self.position.epoch, self.position.step);
        let start = BatchStart { epoch, step, micro_batch, indices: &indices };
        self.notify(|callback| callback.on_batch_start(&start))
    }

    /// Shows the callbacks the parameters, if they are those of all ranks.
    fn show_values(&mut self) -> Result<(), TrainError> {
        if self.callbacks.is_empty() || self.parallel.drifts() {
            return Ok(());
        }
        self.show_agreed_values()
    }

    /// Shows the callbacks the parameters, which are those of all ranks.
    pub(crate) fn show_agreed_values(&mut self) -> Result<(), TrainError> {
        let values = self.parallel.values();
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_values(&values))
    }

    /// Runs a micro-batch forward and backward; the last one of a window communicates.
    fn micro_batch(
        &mut self,
        batch: LoadedBatch<M::Batch>,
        index: usize,
        last: bool,
    ) -> Result<(), TrainError> {
        let context = self.context(index);
        // Flex has one random generator for the whole process: what a step draws depends on where
        // the step stands, not on what was drawn before.
        self.device.seed(step_seed(self.config.seed, context.rank, context.step, index));
        if last {
            self.cast_votes();
        }
        // A resumed epoch may end with other batches than those that were checked.
        if self.synchronized && batch.global_samples < context.world_size {
            let (samples, ranks) = (batch.global_samples, context.world_size);
            return Err(TrainError::RankWithoutSamples { samples, ranks });
        }
        let Some(batch) = batch.data else {
            return self.backward(last, |parallel| parallel.backward_without_samples());
        };
        let (output, calls) = self.times.time(Part::Forward, || {
            let model = self.parallel.replica()?;
            let forward = || model.training_step(batch, &context);
            Ok::<_, TrainError>(match self.config.detect_anomaly {
                true => watch_layers(Watch::Values, forward),
                false => (forward(), Vec::new()),
            })
        })?;
        if self.config.detect_anomaly {
            self.check_forward(&output, &calls)?;
        }
        self.local.add(&output);
        let StepOutput { loss, reduction, weight, .. } = output;
        let loss = match &self.precision.scaler {
            Some(scaler) => scaler.scale_loss(loss),
            None => loss,
        };
        self.backward(last, |parallel| parallel.backward_weighted(loss, reduction, weight))
    }

    /// Tells the other ranks, with the gradients, that this one is asked to stop or to save.
    fn cast_votes(&mut self) {
        let stop = if self.stop.is_set() { 1.0 } else { 0.0 };
        let save = if self.is_due_by_clock() { SAVE } else { 0.0 };
        if stop + save > 0.0 {
            self.parallel.vote(stop + save);
        }
    }

    /// What is done to gradients before the optimizer sees them; a norm that is only told is measured by a
    /// bound that nothing exceeds.
    fn clip(&self) -> Option<Clip> {
        let measured = || self.config.log_grad_norm.then(|| Clip::norm(f64::INFINITY));
        self.config.clip.or_else(measured)
    }

    /// Unscales and clips the reduced gradients and updates the parameters, or skips the step.
    fn optimizer_step(&mut self, learning_rate: f64) -> Result<StepInProgress, TrainError> {
        let clip = self.clip();
        let mut options = StepOptions::new();
        if let Some(scaler) = &mut self.precision.scaler {
            self.local.add_step("loss_scale", Some(scaler.scale().into()));
            options = options.with_scaler(scaler);
        }
        if let Some(clip) = clip {
            options = options.with_clip(clip);
        }
        let (parallel, optimizer) = (&mut self.parallel, self.optimizer.as_mut());
        Ok(self
            .times
            .time(Part::Optimizer, || parallel.begin_step(optimizer, learning_rate, options))?)
    }

    fn backward(
        &mut self,
        last: bool,
        pass: impl FnOnce(
            &mut bonfire_parallel::DataParallel<M>,
        ) -> Result<(), bonfire_parallel::ParallelError>,
    ) -> Result<(), TrainError> {
        let parallel = &mut self.parallel;
        let result = self.times.time(Part::Backward, || match last {
            true => pass(parallel),
            false => parallel.no_sync(pass),
        });
        Ok(result?)
    }
}

/// Seed of the random numbers that a micro-batch draws, such as dropout.
fn step_seed(seed: u64, rank: usize, step: u64, micro_batch: usize) -> u64 {
    let words = [seed, rank as u64, step, micro_batch as u64];
    let mut bytes = [0; 32];
    for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes)
}

/// Vote of rank 0 for a checkpoint: more than all ranks' votes to stop.
const SAVE: f64 = (1u64 << 32) as f64;

/// Whether somebody wants to stop, and whether rank 0 wants to save.
fn read_votes(votes: f64) -> (bool, bool) {
    (votes % SAVE > 0.0, votes >= SAVE)
}
