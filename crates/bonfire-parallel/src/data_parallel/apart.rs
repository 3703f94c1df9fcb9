//! Steps on a device for which no host waits.
//!
//! Norm and overflow are found by one pass over the gradients on the device, and what follows from
//! them, the factor of the gradients and whether the optimizer's result is taken, stays there. The
//! host reads the figures a step later, when they have long been copied: by then it has submitted the
//! next forward and backward pass, so the device never waits for the host.

use super::DataParallel;
use super::step::StepInProgress;
use crate::ParallelError;
use crate::StepReport;
use crate::exchange::Exchange;
use crate::joined::joined;
use crate::optimizer::FlatOptimizer;
use crate::reducer::Reduced;
use bonfire_amp::{Clip, GradScaler, GradientStats, NormType};
use bonfire_comm::{Operation, ReduceOp};
use bonfire_tensor::host::burn_type;
use bonfire_tensor::later::Later;
use bonfire_tensor::lend;
use bonfire_tensor::parameters;
use burn::module::Module;
use burn::tensor::{Bool, DType, Tensor};
use std::time::Duration;

/// Time beyond a group's own in which it finds out what a collective waits for.
const EXPLAINED: Duration = Duration::from_secs(10);

/// What a device has decided about a window's gradients.
pub(super) struct Verdict {
    /// What they have to be multiplied by; shape `[1]`.
    factor: Tensor<1>,
    /// Whether the step is taken; shape `[1]`. None without a scaler.
    only_if: Option<Tensor<1, Bool>>,
    pub(super) figures: Figures,
}

/// The figures on their way to the host.
pub(super) struct Figures {
    /// Norm, whether the step was taken, the new scale.
    values: Later,
    scales: bool,
    /// What they come from: see [`device_mark`](bonfire_comm::ProcessGroup::device_mark).
    mark: u64,
}

impl Verdict {
    pub(super) fn apply(&self, gradients: Tensor<1>, limit: Option<f64>) -> Tensor<1> {
        let dtype = gradients.dtype();
        let scaled = gradients * self.factor.clone().cast(dtype);
        match limit {
            Some(limit) => scaled.clamp(-limit, limit),
            None => scaled,
        }
    }

    pub(super) fn only_if(&self) -> Option<Tensor<1, Bool>> {
        self.only_if.clone()
    }
}

impl<M: Module> DataParallel<M> {
    /// Whether a device can decide: unless somebody has to know at once.
    pub(super) fn decides_apart(&self, scales: bool, clip: Option<&Clip>, can_undo: bool) -> bool {
        let strict = matches!(clip, Some(Clip::Norm { error_if_nonfinite: true, .. }));
        let alone = self.exchange() == Exchange::None && self.control.world_size() > 1;
        // What a hook holds back has the scale of the window before: it has to hear of a new one in
        // time.
        let holds_back = self.reducer.hook().is_some_and(|hook| hook.half().is_none());
        // Whether a window exchanges gradients depends on how many steps were taken before it.
        let drifts = self.config.local_sgd.is_some();
        self.apart && !strict && !alone && !drifts && (!scales || can_undo && !holds_back)
    }

    /// Finds norm and overflow, and what becomes of the gradients.
    ///
    /// # Collective
    /// All ranks, where each has a part of the gradients.
    pub(super) fn verdict(
        &mut self,
        gradient_scale: f64,
        scaler: Option<&mut GradScaler>,
        clip: Option<&Clip>,
    ) -> Result<Verdict, ParallelError> {
        let device = self.device.clone();
        let one = |value: f64| Tensor::<1>::from_data([value as f32], (&device, DType::F32));
        let (scaler, inverse) = match scaler {
            Some(scaler) => {
                let inverse = scaler.inverse_on(&device);
                (Some(scaler), inverse.mul_scalar(gradient_scale))
            }
            None => (None, one(gradient_scale)),
        };
        let norm_type = clip.map_or(NormType::Two, Clip::norm_type);
        let total = self.total(&inverse, norm_type)?;
        let norm = match norm_type {
            NormType::Two => total.sqrt(),
            NormType::Infinity => total,
        };
        let finite = norm.clone().is_finite();
        let factor = match clip {
            Some(Clip::Norm { max_norm, .. }) if max_norm.is_finite() => {
                let coefficient = norm.clone().add_scalar(1e-6).recip().mul_scalar(*max_norm);
                // Not a minimum, which may take a NaN away.
                let is_above = coefficient.clone().greater_scalar(1.0);
                inverse * coefficient.mask_fill(is_above, 1.0)
            }
            _ => inverse,
        };
        let scales = scaler.is_some();
        let scale = scaler.and_then(|scaler| scaler.advance(&finite));
        let taken = finite.clone().float();
        let scale = scale.unwrap_or_else(|| one(1.0));
        let figures = Tensor::cat(vec![norm, taken.cast(DType::F32), scale], 0);
        let mark = self.control.device_mark();
        let figures = Figures { values: Later::of(figures)?, scales, mark };
        Ok(Verdict { factor, only_if: scales.then_some(finite), figures })
    }

    /// Sum of squares, or largest absolute value, of the gradients of all parameters times `factor`.
    fn total(&self, factor: &Tensor<1>, norm_type: NormType) -> Result<Tensor<1>, ParallelError> {
        let mut total: Option<Tensor<1>> = None;
        let mut parts = false;
        for bucket in 0..self.reducer.layout().buckets().len() {
            let found = self.reducer.with_reduced(bucket, |reduced| {
                parts |= matches!(reduced, Reduced::FlatPart(_));
                let flat = reduced.clone().into_flat(&self.device);
                GradientStats::total_on_device(&flat, factor, norm_type)
            })?;
            total = Some(match (total, norm_type) {
                (None, _) => found,
                (Some(total), NormType::Two) => total + found,
                (Some(total), NormType::Infinity) => total.max_pair(found),
            });
        }
        let total = total.ok_or(ParallelError::NoGradients { rank: self.control.rank() })?;
        if !parts {
            return Ok(total);
        }
        let op = match norm_type {
            NormType::Two => ReduceOp::Sum,
            NormType::Infinity => ReduceOp::Max,
        };
        // In memory of its own: a result of one element may share that of others.
        let own = Tensor::cat(vec![total.zeros_like(), total], 0);
        let lent = lend::start(self.reducer.group(), Operation::AllReduce(op), own)?;
        Ok(lent.finish()?.slice(1..2))
    }

    /// Makes the model's parameters views of fresh buckets that hold the values which they have now.
    pub(super) fn adopt_apart(&mut self) {
        let mut values: Vec<Option<Tensor<1>>> =
            parameters::trainable_tensors(&self.model).into_iter().map(Some).collect();
        let buckets = self.reducer.layout().buckets().iter().enumerate();
        self.flat = buckets
            .map(|(index, bucket)| {
                let parts = bucket.segments.iter();
                let parts = parts.map(|segment| values[segment.parameter].take());
                let options = (&self.device, burn_type(bucket.dtype));
                joined(&bucket.segments, parts, self.reducer.memory_len(index), options)
            })
            .collect();
        self.show_flat();
    }

    /// Waits until it is known what became of a step that
    /// [`begin_step`](Self::begin_step) has begun, and tells it to the optimizer and the scaler. Steps
    /// are concluded in their order, each before the next one's `begin_step`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn conclude(
        &mut self,
        step: StepInProgress,
        optimizer: &mut dyn FlatOptimizer,
        scaler: Option<&mut GradScaler>,
    ) -> Result<StepReport, ParallelError> {
        let StepInProgress { mut report, figures } = step;
        let Some(Figures { values, scales, mark }) = figures else { return Ok(report) };
        // A collective that does not come to its end is explained by the group, a little later.
        let patience = self.control.timeout() + EXPLAINED;
        let values = values.read(patience);
        // What a device has made of a collective that was given up is worth nothing.
        if self.control.is_lost_before(mark)
            && let Some(failure) = self.control.failure()
        {
            return Err(failure.into());
        }
        let values = values?;
        let [norm, taken, scale] = values.first_chunk().copied().unwrap_or([f32::NAN; 3]);
        report.skipped = scales && taken == 0.0;
        report.grad_norm = (!report.skipped).then_some(f64::from(norm));
        if let Some(scaler) = scaler.filter(|_| scales) {
            let old = scaler.scale();
            scaler.conclude(report.skipped, scale);
            self.rescale_hook(f64::from(scale) / f64::from(old));
        }
        if report.skipped {
            optimizer.undo();
            self.steps = self.steps.saturating_sub(1);
        }
        Ok(report)
    }
}
