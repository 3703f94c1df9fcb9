//! What comes between reduced gradients and the optimizer: unscaling, overflow, clipping.
//!
//! ORDER: as in PyTorch, all-reduce, unscale, look for an overflow on any rank, clip by the norm over
//! all parameters, then step or skip, then the new scale. Unscaling and clipping by norm are one
//! factor with which the optimizer multiplies gradients anyway, so the only pass is the one that
//! finds overflow and norm together.

use super::DataParallel;
use super::apart::Verdict;
use crate::ParallelError;
use crate::exchange::Exchange;
use crate::reducer::Reduced;
use bonfire_amp::{Clip, GradScaler, GradientStats, NormType, scale_and_limit};
use bonfire_comm::ReduceOp;
use burn::module::Module;
use burn::tensor::{Bool, Tensor};

/// What a step does with the reduced gradients before the optimizer sees them.
///
/// # Collective
/// Every rank gives the same options; scalers in the same state.
#[derive(Debug, Default)]
pub struct StepOptions<'a> {
    scaler: Option<&'a mut GradScaler>,
    clip: Option<Clip>,
}

impl<'a> StepOptions<'a> {
    /// Leaves the gradients as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// Undoes the scale of a loss that [`GradScaler::scale_loss`] has scaled, and skips the step, on
    /// every rank, when a gradient of any rank is not finite. The scaler is updated.
    pub fn with_scaler(self, scaler: &'a mut GradScaler) -> Self {
        Self { scaler: Some(scaler), ..self }
    }

    /// Bounds the gradients.
    pub fn with_clip(self, clip: Clip) -> Self {
        Self { clip: Some(clip), ..self }
    }

    pub(super) fn into_scaler(self) -> Option<&'a mut GradScaler> {
        self.scaler
    }

    /// The same options for a part of the time.
    pub(super) fn reborrow(&mut self) -> StepOptions<'_> {
        StepOptions { scaler: self.scaler.as_deref_mut(), clip: self.clip }
    }
}

/// What is done to the gradients of a window.
pub(super) struct Guarded {
    /// What they have to be multiplied by.
    pub(super) gradient_scale: f64,
    limit: Option<f64>,
    pub(super) norm: Option<f64>,
    /// Whether the optimizer must not see them.
    pub(super) skip: bool,
    /// What a device has decided, and nobody else knows yet.
    pub(super) verdict: Option<Verdict>,
}

impl Guarded {
    /// Flat gradients as the optimizer gets them, and what it multiplies them by.
    pub(super) fn apply(&self, gradients: Tensor<1>) -> (Tensor<1>, f64) {
        if let Some(verdict) = &self.verdict {
            return (verdict.apply(gradients, self.limit), 1.0);
        }
        match self.limit {
            Some(limit) => (scale_and_limit(gradients, self.gradient_scale, limit), 1.0),
            None => (gradients, self.gradient_scale),
        }
    }

    /// Whether the update takes place at all, where only a device knows.
    pub(super) fn only_if(&self) -> Option<Tensor<1, Bool>> {
        self.verdict.as_ref().and_then(Verdict::only_if)
    }
}

impl<M: Module> DataParallel<M> {
    /// Decides what becomes of a window's gradients, alike on every rank, and updates the scaler.
    ///
    /// # Collective
    /// All ranks, where their gradients differ.
    pub(super) fn guard(
        &mut self,
        gradient_scale: f64,
        options: StepOptions<'_>,
        can_undo: bool,
    ) -> Result<Guarded, ParallelError> {
        let StepOptions { scaler, clip } = options;
        let mut guarded =
            Guarded { gradient_scale, limit: None, norm: None, skip: false, verdict: None };
        if scaler.is_none() && clip.is_none() {
            return Ok(guarded);
        }
        if let Some(clip) = &clip {
            clip.validate()?;
        }
        if self.decides_apart(scaler.is_some(), clip.as_ref(), can_undo) {
            if let Some(Clip::Value { limit }) = clip {
                guarded.limit = Some(limit);
            }
            guarded.verdict = Some(self.verdict(gradient_scale, scaler, clip.as_ref())?);
            return Ok(guarded);
        }
        let norm_type = clip.as_ref().map_or(NormType::Two, Clip::norm_type);
        let stats = self.reduced_stats(norm_type, scaler.is_some())?;
        if let Some(scaler) = scaler {
            guarded.gradient_scale *= scaler.inverse_scale();
            guarded.skip = !stats.is_finite();
            let old = scaler.scale();
            scaler.update(guarded.skip);
            self.rescale_hook(f64::from(scaler.scale()) / f64::from(old));
            if guarded.skip {
                return Ok(guarded);
            }
        }
        let norm = stats.norm() * guarded.gradient_scale;
        guarded.norm = Some(norm);
        match clip {
            Some(Clip::Norm { error_if_nonfinite: true, .. }) if !norm.is_finite() => {
                let error = ParallelError::GradientNotFinite { step: self.steps, norm };
                if self.exchange() == Exchange::None {
                    // The others' gradients are their own: they have not seen it.
                    self.control.abort(&error.to_string());
                }
                return Err(error);
            }
            Some(Clip::Value { limit }) => guarded.limit = Some(limit),
            Some(clip) => guarded.gradient_scale *= clip.coefficient(norm),
            None => {}
        }
        Ok(guarded)
    }

    /// Figures of the reduced gradients of all parameters.
    ///
    /// # Collective
    /// All ranks where each has a part of the gradients, or gradients of its own and a scaler;
    /// elsewhere every rank reads the same bits.
    fn reduced_stats(
        &self,
        norm_type: NormType,
        scales: bool,
    ) -> Result<GradientStats, ParallelError> {
        let mut stats = GradientStats::none(norm_type);
        let mut parts = false;
        for (index, bucket) in self.reducer.layout().buckets().iter().enumerate() {
            let elements = bucket.num_elements();
            let found = self.reducer.with_reduced(index, |reduced| match reduced {
                // Totals and padding behind the elements do not count.
                Reduced::Host(memory) => Ok(GradientStats::of_host(memory, 0..elements, norm_type)),
                Reduced::Adopted(flat) => GradientStats::of_tensor(flat, norm_type),
                Reduced::FlatPart(part) => {
                    parts = true;
                    GradientStats::of_tensor(part, norm_type)
                }
                Reduced::Part(part) => {
                    parts = true;
                    let start = self.own_start(index);
                    let own = elements.saturating_sub(start).min(part.len());
                    Ok(GradientStats::of_host(part, 0..own, norm_type))
                }
            })??;
            stats = stats.and(found);
        }
        match (parts, self.exchange()) {
            (true, _) => self.stats_over_ranks(stats, norm_type),
            // The norm stays each rank's own, but all have to skip the same steps.
            (false, Exchange::None) if scales && self.control.world_size() > 1 => {
                let mut bad = [u8::from(!stats.is_finite())];
                self.control.all_reduce(&mut bad, ReduceOp::Max)?;
                Ok(GradientStats::from_parts(norm_type, stats.total(), bad[0] == 0))
            }
            _ => Ok(stats),
        }
    }

    fn own_start(&self, bucket: usize) -> usize {
        let len = self.reducer.memory_len(bucket);
        self.sharding.map_or(0, |sharding| sharding.range(len).start)
    }

    fn stats_over_ranks(
        &self,
        own: GradientStats,
        norm_type: NormType,
    ) -> Result<GradientStats, ParallelError> {
        let bad = if own.is_finite() { 0.0 } else { 1.0 };
        let mut values = [own.total(), bad];
        let op = match norm_type {
            NormType::Two => ReduceOp::Sum,
            NormType::Infinity => ReduceOp::Max,
        };
        self.control.all_reduce(&mut values, op)?;
        Ok(GradientStats::from_parts(norm_type, values[0], values[1] == 0.0))
    }

    /// Tells a communication hook that gradients come with another scale from now on.
    pub(super) fn rescale_hook(&self, factor: f64) {
        if let Some(hook) = self.reducer.hook().filter(|_| factor != 1.0) {
            hook.hook().rescale(factor);
        }
    }

    /// Lets the gradients of a window go, unused.
    pub(super) fn discard(&mut self) -> Result<(), ParallelError> {
        for bucket in 0..self.flat.len() {
            let memory = match self.reducer.take(bucket)? {
                Reduced::Host(memory) => Some(memory),
                Reduced::Adopted(_) | Reduced::Part(_) | Reduced::FlatPart(_) => None,
            };
            self.reducer.recycle(bucket, memory);
        }
        Ok(())
    }
}
