//! The end of a window: gradients come back, the optimizer updates the parameters.

use super::DataParallel;
use super::apart::Figures;
use super::guard::{Guarded, StepOptions};
use crate::bucket::Segment;
use crate::exchange::Exchange;
use crate::optimizer::{FlatOptimizer, FlatUpdate, ParameterSettings};
use crate::reducer::{Reduced, Totals};
use crate::{GradientReduction, ParallelError};
use bonfire_comm::ReduceOp;
use bonfire_tensor::host::{reclaim, view};
use burn::module::Module;
use burn::tensor::Tensor;
use std::time::Instant;

/// What all ranks did in the window that a step ended.
///
/// In a step without exchange ([`LocalSgd`](crate::LocalSgd)) the weight is this rank's own, and
/// votes are told after the steps that average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Sum of the micro-batches' weights.
    pub weight: f64,
    /// Sum of the votes.
    pub votes: f64,
    /// Norm of the gradients of all parameters, unscaled and before clipping; known where
    /// [`StepOptions`] ask for a scaler or for clipping, and the step was not skipped.
    pub grad_norm: Option<f64>,
    /// Whether an overflow kept the optimizer from its step.
    pub skipped: bool,
}

/// A step whose outcome a device may know and nobody else yet; see
/// [`DataParallel::begin_step`].
#[must_use = "a step has to be concluded before the next one begins"]
pub struct StepInProgress {
    pub(super) report: StepReport,
    pub(super) figures: Option<Figures>,
}

impl StepInProgress {
    /// Whether [`conclude`](DataParallel::conclude) has nothing to wait for.
    pub fn is_known(&self) -> bool {
        self.figures.is_none()
    }

    /// The sum of the votes, which is known at once.
    pub fn votes(&self) -> f64 {
        self.report.votes
    }
}

/// A window whose gradients are back.
pub(super) struct Ended {
    pub(super) totals: Totals,
    /// What the gradients have to be multiplied by.
    pub(super) gradient_scale: f64,
    /// Trainable parameters that take part in the step, by index.
    pub(super) used: Vec<bool>,
}

impl<M: Module> DataParallel<M> {
    /// Waits until all gradients of the window are reduced. [`step`](Self::step) does it too.
    ///
    /// # Errors
    /// [`ParallelError::UnusedParameters`] on every rank, naming parameters and ranks;
    /// [`ParallelError::NoGradients`] without a backward pass; failures of the group.
    pub fn synchronize(&mut self) -> Result<(), ParallelError> {
        if self.totals.is_some() {
            return Ok(());
        }
        let start = Instant::now();
        let result = self.await_gradients();
        self.comm_wait += start.elapsed();
        self.totals = Some(result?);
        Ok(())
    }

    /// Waits for the reduced gradients and lets `optimizer` update the parameters with learning
    /// rate `learning_rate`. Ends the window.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize); [`ParallelError::NoSamples`];
    /// [`ParallelError::ReplicasDiffer`] where replicas are compared.
    pub fn step(
        &mut self,
        optimizer: &mut dyn FlatOptimizer,
        learning_rate: f64,
    ) -> Result<StepReport, ParallelError> {
        self.step_at(optimizer, Some(learning_rate), StepOptions::new())
    }

    /// As [`step`](Self::step), after unscaling and clipping the gradients.
    ///
    /// A step that a scaler skips leaves parameters, optimizer and
    /// [`steps`](Self::steps) as they were, on every rank; the report says so, and a learning rate
    /// schedule should not advance.
    ///
    /// ```ignore
    /// parallel.backward(scaler.scale_loss(loss))?;
    /// let options = StepOptions::new().with_scaler(&mut scaler).with_clip(Clip::norm(1.0));
    /// let report = parallel.step_with_options(&mut optimizer, rate, options)?;
    /// ```
    ///
    /// # Errors
    /// As `step`; [`ParallelError::Amp`] for an impossible bound;
    /// [`ParallelError::GradientNotFinite`].
    pub fn step_with_options(
        &mut self,
        optimizer: &mut dyn FlatOptimizer,
        learning_rate: f64,
        options: StepOptions<'_>,
    ) -> Result<StepReport, ParallelError> {
        self.step_at(optimizer, Some(learning_rate), options)
    }

    /// As [`step_with_options`](Self::step_with_options), but does not wait until the norm of the
    /// gradients, and whether the step was skipped, are known: on a GPU a wait would leave the device
    /// without work. [`conclude`](Self::conclude) tells it, before the next step begins; the next
    /// forward and backward passes may come between.
    ///
    /// # Errors
    /// As `step_with_options`.
    pub fn begin_step(
        &mut self,
        optimizer: &mut dyn FlatOptimizer,
        learning_rate: f64,
        options: StepOptions<'_>,
    ) -> Result<StepInProgress, ParallelError> {
        self.begin_step_at(optimizer, Some(learning_rate), options)
    }

    /// A step whose learning rate another rank may have to tell.
    pub(super) fn step_at(
        &mut self,
        optimizer: &mut dyn FlatOptimizer,
        learning_rate: Option<f64>,
        mut options: StepOptions<'_>,
    ) -> Result<StepReport, ParallelError> {
        let step = self.begin_step_at(optimizer, learning_rate, options.reborrow())?;
        self.conclude(step, optimizer, options.into_scaler())
    }

    fn begin_step_at(
        &mut self,
        optimizer: &mut dyn FlatOptimizer,
        learning_rate: Option<f64>,
        options: StepOptions<'_>,
    ) -> Result<StepInProgress, ParallelError> {
        self.synchronize()?;
        let learning_rate = self.agreed_rate(learning_rate, optimizer)?;
        let Ended { totals, gradient_scale, used } = self.end_window(Some(optimizer))?;
        let mut guarded = self.guard(gradient_scale, options, optimizer.can_undo())?;
        if guarded.skip {
            self.discard()?;
            let Totals { weight, votes, .. } = totals;
            // Nobody has heard of a local step's votes.
            let alone = self.control.world_size() > 1 && self.exchange() == Exchange::None;
            let votes = if alone { 0.0 } else { votes };
            let report = StepReport { weight, votes, grad_norm: None, skipped: true };
            return Ok(StepInProgress { report, figures: None });
        }
        let rate = |settings: &ParameterSettings| learning_rate * settings.lr_factor;
        let rates: Vec<Option<f64>> = used
            .into_iter()
            .zip(&self.settings)
            .map(|(used, settings)| used.then(|| rate(settings)))
            .collect();
        let local = self.begin_local()?;
        match self.sharding {
            Some(sharding) => self.step_parts(sharding, optimizer, &guarded, &rates)?,
            None => self.step_whole(optimizer, &guarded, &rates)?,
        }
        let report = self.finish_step(local, totals)?;
        let report = StepReport { grad_norm: guarded.norm, ..report };
        let figures = guarded.verdict.take().map(|verdict| verdict.figures);
        Ok(StepInProgress { report, figures })
    }

    /// Does what follows the optimizer's update.
    pub(super) fn finish_step(
        &mut self,
        local: bool,
        totals: Totals,
    ) -> Result<StepReport, ParallelError> {
        let votes = if local { self.average_if_due(totals.votes)? } else { totals.votes };
        self.steps += 1;
        self.check_replicas_if_due()?;
        Ok(StepReport { weight: totals.weight, votes, grad_norm: None, skipped: false })
    }

    /// Sets this rank's vote in the coming window; the step returns the sum over all ranks.
    ///
    /// The vote travels with the gradients, so ranks can agree on something (to stop, say) without
    /// a collective of its own. Set it before the window's last backward pass.
    pub fn vote(&mut self, value: f64) {
        self.reducer.vote(value);
    }

    /// The reduced gradient of a parameter after [`synchronize`](Self::synchronize), before any
    /// optimizer has scaled it.
    ///
    /// Returns `None` for an unknown path, another number of dimensions, before synchronising, and
    /// where this rank holds a part of the gradients only.
    pub fn gradient<const D: usize>(&self, path: &str) -> Option<Tensor<D>> {
        let layout = self.reducer.layout();
        let (bucket, segment) = layout.segments().find(|(_, segment)| segment.path == path)?;
        let shape: [usize; D] = segment.shape.clone().try_into().ok()?;
        let reduced = self.reducer.with_reduced(bucket, Clone::clone).ok()?;
        if matches!(reduced, Reduced::Part(_) | Reduced::FlatPart(_)) {
            return None;
        }
        Some(view(&reduced.into_flat(&self.device), segment.range.clone(), shape))
    }

    /// Waits for the window's gradients and for what all ranks have to know of it.
    fn await_gradients(&mut self) -> Result<(Totals, Vec<bool>), ParallelError> {
        self.reducer.wait()?;
        let totals = self.reducer.totals(&self.control)?;
        if totals.unused > 0.0 {
            return Err(self.unused_parameters()?);
        }
        Ok((totals, self.used_on_any_rank(totals)?))
    }

    /// Waits for the window's gradients, and decides what the step does with them.
    pub(super) fn end_window(
        &mut self,
        optimizer: Option<&mut dyn FlatOptimizer>,
    ) -> Result<Ended, ParallelError> {
        self.synchronize()?;
        let (totals, used) = self.totals.take().unwrap_or_default();
        let gradient_scale = self.gradient_scale(totals)?;
        self.rebuild_once(optimizer)?;
        Ok(Ended { totals, gradient_scale, used })
    }

    fn step_whole(
        &mut self,
        optimizer: &mut dyn FlatOptimizer,
        guarded: &Guarded,
        rates: &[Option<f64>],
    ) -> Result<(), ParallelError> {
        let mut old = Vec::with_capacity(self.flat.len());
        for bucket in 0..self.flat.len() {
            let reduced = self.reducer.take(bucket)?;
            let adopted = reduced.is_adopted();
            let (gradients, gradient_scale) = guarded.apply(reduced.into_flat(&self.device));
            let segments = &self.reducer.layout().buckets()[bucket].segments;
            let rates: Vec<_> = segments.iter().map(|segment| rates[segment.parameter]).collect();
            let decays = self.decays(segments);
            let update = FlatUpdate {
                parameters: &self.flat[bucket],
                gradients,
                gradient_scale,
                segments,
                rates: &rates,
                decays: &decays,
                only_if: guarded.only_if(),
            };
            let new = optimizer.step(bucket, update)?;
            old.push((std::mem::replace(&mut self.flat[bucket], new), adopted));
        }
        self.show_flat();
        for (bucket, (memory, adopted)) in old.into_iter().enumerate() {
            // The next gradient of such a bucket brings its own memory again.
            self.reducer.recycle(bucket, if adopted { None } else { reclaim(memory) });
        }
        Ok(())
    }

    /// The weight decay that each segment's parameter group sets.
    pub(super) fn decays(&self, segments: &[Segment]) -> Vec<Option<f64>> {
        segments.iter().map(|segment| self.settings[segment.parameter].weight_decay).collect()
    }

    /// What the mean over ranks has to be multiplied by.
    pub(super) fn gradient_scale(&self, totals: Totals) -> Result<f64, ParallelError> {
        let ranks = match self.exchange() {
            Exchange::None => 1,
            _ => self.control.world_size(),
        };
        match self.config.reduction {
            GradientReduction::MeanOverRanks => Ok(self.join_factor()),
            GradientReduction::PerSample { nominal } if totals.weight > 0.0 => {
                Ok(nominal * ranks as f64 / totals.weight)
            }
            // This rank's step only: the others may have samples.
            GradientReduction::PerSample { .. } if self.local_step() => Ok(0.0),
            GradientReduction::PerSample { .. } => Err(ParallelError::NoSamples),
        }
    }

    fn local_step(&self) -> bool {
        self.exchange() == Exchange::None && self.control.world_size() > 1
    }

    /// Trainable parameters that take part in the step, by index: one that no rank used stays as it
    /// is.
    fn used_on_any_rank(&mut self, totals: Totals) -> Result<Vec<bool>, ParallelError> {
        if let Some(used) = &self.static_used {
            return Ok(used.clone());
        }
        let layout = self.reducer.layout();
        let mut flags = vec![0u8; layout.segments().count()];
        let used = self.reducer.used();
        for (segment, used) in layout.segments().zip(used.iter().flatten()) {
            flags[segment.1.parameter] = u8::from(*used);
        }
        let exchange = self.exchange();
        let alone = exchange == Exchange::None;
        let idle = !used.iter().flatten().any(|used| *used);
        let mut some_rank_was_idle = false;
        if alone
            && self.config.reduction != GradientReduction::MeanOverRanks
            && totals.weight == 0.0
        {
            flags.fill(0);
        } else if !alone && (self.config.find_unused_parameters || self.config.static_graph) {
            flags.push(u8::from(idle));
            self.control.all_reduce(&mut flags, ReduceOp::Max)?;
            some_rank_was_idle = flags.pop() == Some(1);
        } else if !alone {
            flags.fill(1);
        }
        let mut used: Vec<bool> = flags.into_iter().map(|flag| flag == 1).collect();
        // A rank without samples does not know yet what it will use.
        if self.config.static_graph && !some_rank_was_idle {
            self.reducer.expect_the_same();
            self.static_used = Some(used.clone());
        }
        if exchange == Exchange::Hook {
            self.reducer.mark_owed(&mut used)?;
        }
        Ok(used)
    }

    /// Collects from all ranks which parameters had no gradient.
    fn unused_parameters(&self) -> Result<ParallelError, ParallelError> {
        if self.exchange() == Exchange::None {
            // The others have not heard of it, and are elsewhere.
            let ranks = vec![(self.control.rank(), self.reducer.unused())];
            let error = ParallelError::UnusedParameters { ranks };
            self.control.abort(&error.to_string());
            return Ok(error);
        }
        let own = self.reducer.unused().join("\n");
        let all = self.control.all_gather_bytes(own.as_bytes())?;
        let paths = |text: &Vec<u8>| {
            String::from_utf8_lossy(text).lines().map(str::to_string).collect::<Vec<_>>()
        };
        let ranks = all.iter().map(paths).enumerate().filter(|(_, paths)| !paths.is_empty());
        Ok(ParallelError::UnusedParameters { ranks: ranks.collect() })
    }
}
