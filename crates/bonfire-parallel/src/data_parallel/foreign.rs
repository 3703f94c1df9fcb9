//! Training steps of models that run the backward pass themselves, and optimizers that take a
//! module and its gradients: the shape of Burn's own learner.

use super::step::Ended;
use crate::agreement::check_models_agree;
use crate::{DataParallel, GradientReduction, ParallelError, StepReport};
use bonfire_amp::MixedPrecision;
use bonfire_comm::ProcessGroup;
use bonfire_tensor::host::{reclaim, view};
use bonfire_tensor::parameters::{self, Role};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use std::collections::HashSet;

impl<M: Module> DataParallel<M> {
    /// Checks that all ranks hold the same model, as [`new`](Self::new) does, without taking it.
    ///
    /// # Collective
    /// All ranks of `group`.
    ///
    /// # Errors
    /// [`ParallelError::ModelsDiffer`] on every rank; failures of the group.
    pub fn check_agreement(model: &M, group: &ProcessGroup) -> Result<(), ParallelError> {
        check_models_agree(group, &parameters::inspect(model)?)
    }

    /// Runs a micro-batch whose backward pass is part of `pass`, on a replica with hooks.
    ///
    /// Gradients leave the backward pass through the hooks, so those that `pass` may have collected
    /// itself are those of one rank and of no use. Takes the place of
    /// [`replica`](Self::replica) and [`backward`](Self::backward); every micro-batch counts alike,
    /// and outside [`no_sync`](Self::no_sync) the window's gradients are reduced meanwhile.
    ///
    /// # Collective
    /// As `replica` and `backward`.
    ///
    /// # Errors
    /// As `replica` and `backward`; [`ParallelError::Setting`] with fp16, whose loss would have to be
    /// scaled before the backward pass.
    pub fn backward_within<T>(&mut self, pass: impl FnOnce(&M) -> T) -> Result<T, ParallelError> {
        if self.config.mixed_precision.as_ref().is_some_and(MixedPrecision::needs_scaler) {
            let reason = "the loss cannot be scaled, since the model runs its backward pass itself; \
                          implement bonfire_trainer::Learnable, or use bf16";
            let (name, value) = ("mixed_precision", "fp16".to_string());
            return Err(ParallelError::Setting { name, value, reason });
        }
        let weight = match self.config.reduction {
            GradientReduction::MeanOverRanks => 1.0,
            GradientReduction::PerSample { nominal } => nominal,
        };
        let replica = self.replica()?;
        self.begin_micro_batch(weight)?;
        let output = pass(&replica);
        // The hooks keep the reducer busy no longer than the replica lives.
        drop(replica);
        self.end_micro_batch(self.accepts_unused())?;
        Ok(output)
    }

    /// Waits for the reduced gradients and takes what `update` makes of them as the new model.
    /// Takes the place of [`step`](Self::step) and ends the window.
    ///
    /// `update` gets the gradients of this model's parameters, by their
    /// [`ParamId`] in this process; a parameter that no rank used has none. It returns a model with
    /// the same parameters, whose values must follow from the gradients alone, so that they stay
    /// equal on all ranks. Slower than `step`: the values are copied into the buckets, and a few times
    /// on the way.
    ///
    /// # Errors
    /// As `step`; [`ParallelError::Setting`] with a [`ZeroStage`](crate::ZeroStage),
    /// [`LocalSgd`](crate::LocalSgd) or [`Join`](crate::Join).
    pub fn step_with(
        &mut self,
        update: impl FnOnce(GradientsParams) -> M,
    ) -> Result<StepReport, ParallelError> {
        self.check_foreign_optimizer()?;
        let Ended { totals, gradient_scale, used } = self.end_window(None)?;
        let local = self.begin_local()?;
        let mut flat = Vec::with_capacity(self.flat.len());
        let mut adopted = Vec::with_capacity(self.flat.len());
        for bucket in 0..self.flat.len() {
            let reduced = self.reducer.take(bucket)?;
            adopted.push(reduced.is_adopted());
            let gradients = reduced.into_flat(&self.device);
            flat.push(match gradient_scale {
                1.0 => gradients,
                scale => gradients.mul_scalar(scale),
            });
        }
        self.model = update(self.gradients_by_id(&flat, &used));
        match self.apart {
            true => self.adopt_apart(),
            false => {
                self.adopt(parameters::read(&self.model, |spec| spec.role == Role::Trainable)?)?;
            }
        }
        for (bucket, (memory, adopted)) in flat.into_iter().zip(adopted).enumerate() {
            self.reducer.recycle(bucket, if adopted { None } else { reclaim(memory) });
        }
        self.finish_step(local, totals)
    }

    /// Checks that nothing but the optimizer has to change parameters or see their parts.
    fn check_foreign_optimizer(&self) -> Result<(), ParallelError> {
        let setting = |name, value, reason| Err(ParallelError::Setting { name, value, reason });
        if self.sharding.is_some() {
            let reason = "an optimizer that takes the whole module cannot be shared by the ranks";
            return setting("zero_stage", format!("{:?}", self.config.zero_stage), reason);
        }
        if self.joins() {
            let reason = "a rank that has joined could not take the steps of such an optimizer";
            return setting("join", format!("{:?}", self.config.join), reason);
        }
        if self.config.parameter_groups != crate::ParameterGroups::default() {
            let reason = "an optimizer that takes the whole module has rates and decays of its own";
            return setting("parameter_groups", "given".to_string(), reason);
        }
        if let Some(policy) = self.config.local_sgd {
            let reason = "an optimizer that keeps the module itself would not see the averages";
            return setting("local_sgd.period", policy.period.to_string(), reason);
        }
        Ok(())
    }

    /// Cuts the flat gradients of the buckets up into those of the parameters.
    fn gradients_by_id(&self, flat: &[Tensor<1>], used: &[bool]) -> GradientsParams {
        let layout = self.reducer.layout();
        let part = |index: usize| {
            let (bucket, segment) = layout.place(index)?;
            used[index].then_some(())?;
            Some((&flat[bucket], layout.buckets()[bucket].segments[segment].range.clone()))
        };
        let mut cutter = Cutter { part, seen: HashSet::new(), gradients: GradientsParams::new() };
        self.model.visit(&mut cutter);
        cutter.gradients
    }
}

/// Visits the distinct trainable parameters in the order that numbers the hooks.
struct Cutter<F> {
    part: F,
    seen: HashSet<ParamId>,
    gradients: GradientsParams,
}

impl<'a, F> ModuleVisitor for Cutter<F>
where
    F: Fn(usize) -> Option<(&'a Tensor<1>, std::ops::Range<usize>)>,
{
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.seen.len();
        if !param.is_require_grad() || !self.seen.insert(param.id) {
            return;
        }
        if let Some((flat, range)) = (self.part)(index) {
            self.gradients.register(param.id, view(flat, range, param.dims()));
        }
    }
}
