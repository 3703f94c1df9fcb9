//! Micro-batches: forward passes through a replica, backward passes into the buckets.

use super::DataParallel;
use crate::exchange::Exchange;
use crate::{GradientReduction, LossReduction, ParallelError};
use bonfire_tensor::hook::{GradientSink, hook_parameters};
use bonfire_tensor::trace::trace_parameters;
use burn::module::Module;
use burn::tensor::Tensor;
use std::sync::Arc;

impl<M: Module> DataParallel<M> {
    /// The model to run forward in this micro-batch, with hooks behind its parameters, and casts
    /// behind the hooks where [`mixed_precision`](crate::DataParallelConfig::mixed_precision) says so.
    ///
    /// Before the backward pass all calls return the same replica, so a loss may be made of several
    /// forward passes.
    ///
    /// # Collective
    /// The first micro-batch of a window, inside [`no_sync`](Self::no_sync) or not, broadcasts
    /// running statistics if the model has any, as PyTorch does: those of rank 0, or of the first
    /// rank that still has batches where ranks may [`join`](Self::join).
    ///
    /// # Errors
    /// Failures of the group.
    pub fn replica(&mut self) -> Result<M, ParallelError> {
        if let Some(replica) = &self.replica {
            return Ok(replica.clone());
        }
        self.begin_window(true)?;
        let sink: Arc<dyn GradientSink> = self.reducer.clone();
        let (model, casting) = (self.model.clone(), self.casting.as_ref());
        let replica = match &self.trace {
            Some(trace) => trace_parameters(model, &self.anchors, &sink, trace, casting),
            None => hook_parameters(model, &self.anchors, &sink, casting),
        };
        self.replica = Some(replica.clone());
        Ok(replica)
    }

    /// Runs the backward pass of a micro-batch; outside [`no_sync`](Self::no_sync) its gradients,
    /// and those accumulated before, are reduced meanwhile.
    ///
    /// With [`GradientReduction::PerSample`] the loss counts as the mean over `nominal` samples;
    /// [`backward_weighted`](Self::backward_weighted) says how many there were.
    ///
    /// # Errors
    /// [`ParallelError::LossShape`], [`ParallelError::WindowOver`], failures of the group.
    pub fn backward(&mut self, loss: Tensor<1>) -> Result<(), ParallelError> {
        let weight = match self.config.reduction {
            GradientReduction::MeanOverRanks => 1.0,
            GradientReduction::PerSample { nominal } => nominal,
        };
        self.backward_weighted(loss, LossReduction::Mean, weight)
    }

    /// As [`backward`](Self::backward), for a micro-batch of `weight` samples, tokens or other
    /// units of weight: what the loss is the mean over, or how many it sums up. Without
    /// [`GradientReduction::PerSample`] the weight has no influence.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    pub fn backward_weighted(
        &mut self,
        loss: Tensor<1>,
        reduction: LossReduction,
        weight: f64,
    ) -> Result<(), ParallelError> {
        let elements = loss.shape().num_elements();
        if elements != 1 {
            return Err(ParallelError::LossShape { elements });
        }
        let factor = match (self.config.reduction, reduction) {
            (GradientReduction::MeanOverRanks, _) => 1.0,
            (GradientReduction::PerSample { nominal }, LossReduction::Mean) => weight / nominal,
            (GradientReduction::PerSample { nominal }, LossReduction::Sum) => 1.0 / nominal,
        };
        let loss = if factor == 1.0 { loss } else { loss.mul_scalar(factor) };
        self.begin_micro_batch(weight)?;
        drop(loss.backward());
        self.end_micro_batch(self.accepts_unused())
    }

    /// Takes part in a micro-batch for which this rank has no samples: contributes zeros.
    ///
    /// # Errors
    /// Failures of the group.
    pub fn backward_without_samples(&mut self) -> Result<(), ParallelError> {
        self.begin_window(true)?;
        self.empty_micro_batch()
    }

    /// Runs `f` without reducing gradients: those of backward passes inside accumulate locally, and
    /// the first backward pass outside reduces them with its own. What begins a window,
    /// [`replica`](Self::replica), communicates here too.
    ///
    /// The micro-batches of a window may use different parameters; what any of them used is
    /// reduced.
    pub fn no_sync<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.synchronizing, false);
        let result = f(self);
        self.synchronizing = outer;
        result
    }

    /// A micro-batch of zeros in a window that has begun.
    pub(super) fn empty_micro_batch(&mut self) -> Result<(), ParallelError> {
        self.begin_micro_batch(0.0)?;
        self.end_micro_batch(true)
    }

    pub(crate) fn begin_micro_batch(&mut self, weight: f64) -> Result<(), ParallelError> {
        match self.synchronizing {
            true => self.reducer.begin_last(self.exchange(), weight),
            false => self.reducer.begin_quiet(weight),
        }
    }

    pub(crate) fn end_micro_batch(&mut self, accept_unused: bool) -> Result<(), ParallelError> {
        self.replica = None;
        if self.synchronizing {
            self.window_begun = false;
        }
        self.reducer.finish(accept_unused)
    }

    /// Whether a parameter without a gradient is no error in this window.
    pub(crate) fn accepts_unused(&self) -> bool {
        let finding_out = self.config.static_graph && self.static_used.is_none();
        self.config.find_unused_parameters && !self.config.static_graph
            || finding_out
            || self.control.world_size() == 1
    }

    /// Does what comes before the first forward pass of a window. `has_batches` tells the other
    /// ranks whether this one goes on.
    pub(super) fn begin_window(&mut self, has_batches: bool) -> Result<(), ParallelError> {
        if std::mem::replace(&mut self.window_begun, true) {
            return Ok(());
        }
        if self.joins() {
            self.roll_call(has_batches)?;
        }
        // Ranks that take steps of their own keep statistics of their own, until the next average.
        match self.config.broadcast_buffers && self.exchange() != Exchange::None {
            true => self.synchronize_buffers(),
            false => Ok(()),
        }
    }
}
