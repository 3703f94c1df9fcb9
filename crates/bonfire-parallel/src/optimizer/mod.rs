//! Optimizers over flat buckets.
//!
//! An optimizer sees a bucket as one flat run of parameters and one of gradients, and does not know
//! the model. [`Sgd`] and [`Adam`] follow PyTorch to the last bit of their scalars (hyperparameters
//! are f64); [`BurnOptimizer`] makes any optimizer of `burn::optim` usable.

mod adam;
mod burn_adapter;
mod groups;
mod kernel;
mod sgd;
mod slots;

pub use adam::{Adam, AdamConfig, AdamWConfig};
pub use burn_adapter::BurnOptimizer;
pub use groups::{ParameterGroup, ParameterGroups, ParameterSettings, Select};
pub use sgd::{Sgd, SgdConfig};
pub use slots::OptimizerState;

use crate::ParallelError;
use crate::bucket::Segment;
use bonfire_tensor::state::Scalar;
use burn::tensor::{Bool, Tensor};
use std::ops::Range;

/// What an optimizer gets for one bucket and one step.
pub struct FlatUpdate<'a> {
    /// The parameters, shape `[n]`, on a device without autodiff. Others hold views of them: they
    /// must not be changed in place.
    pub parameters: &'a Tensor<1>,
    /// The gradients, shape `[n]`; the optimizer may use their memory for its result.
    pub gradients: Tensor<1>,
    /// What the gradients have to be multiplied by first.
    pub gradient_scale: f64,
    /// The parameters' places; elements behind the last one are padding.
    pub segments: &'a [Segment],
    /// Learning rate of each segment; `None` leaves its parameters and state as they are.
    pub rates: &'a [Option<f64>],
    /// Weight decay of each segment; `None` is the optimizer's own.
    pub decays: &'a [Option<f64>],
    /// Whether the update takes place at all, if a device knows it and nobody else yet: shape `[1]`;
    /// only for optimizers that [can leave it out](FlatOptimizer::can_undo).
    pub only_if: Option<Tensor<1, Bool>>,
}

impl FlatUpdate<'_> {
    /// Neighbouring segments of equal rate, decay and `key` as one run of elements. What lies between
    /// two of them holds zeros, and belongs to the run.
    pub fn runs<K: PartialEq>(&self, key: impl Fn(&Segment) -> K) -> Vec<Run<K>> {
        let mut runs: Vec<Run<K>> = Vec::new();
        let mut is_neighbour = false;
        for ((segment, rate), decay) in self.segments.iter().zip(self.rates).zip(self.decays) {
            let Some(rate) = *rate else {
                is_neighbour = false;
                continue;
            };
            let range = segment.range.clone();
            let next = Run { range, rate, decay: *decay, key: key(segment) };
            match runs.last_mut() {
                Some(run) if is_neighbour && run.is_like(&next) => run.range.end = next.range.end,
                _ => runs.push(next),
            }
            is_neighbour = true;
        }
        runs
    }
}

/// Elements of a bucket that are updated alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Run<K> {
    /// The elements.
    pub range: Range<usize>,
    /// Their learning rate.
    pub rate: f64,
    /// Their weight decay; `None` is the optimizer's own.
    pub decay: Option<f64>,
    /// What else they have in common.
    pub key: K,
}

impl<K: PartialEq> Run<K> {
    fn is_like(&self, next: &Self) -> bool {
        self.rate == next.rate && self.decay == next.decay && self.key == next.key
    }
}

/// An optimizer over flat buckets.
///
/// Its state per element (momentum and the like) lives in *slots*, one flat tensor per bucket and
/// name, so that a checkpoint can cut it up by parameter.
pub trait FlatOptimizer: Send {
    /// Called with every bucket once per step, in order; returns the new parameters.
    ///
    /// # Errors
    /// When a device fails.
    fn step(&mut self, bucket: usize, update: FlatUpdate<'_>) -> Result<Tensor<1>, ParallelError>;

    /// Whether steps can be left out by [`FlatUpdate::only_if`], and [`undo`](Self::undo) works.
    fn can_undo(&self) -> bool {
        false
    }

    /// Hears that the last step, over all buckets, was left out by [`FlatUpdate::only_if`]: what was
    /// counted on the host is taken back.
    fn undo(&mut self) {}

    /// The momentum, where [`set_momentum`](Self::set_momentum) can change it.
    fn momentum(&self) -> Option<f64> {
        None
    }

    /// Sets the momentum of the coming steps: the factor of [`Sgd`], the first beta of [`Adam`].
    ///
    /// # Errors
    /// [`ParallelError::OptimizerSetting`] outside `[0, 1)`; [`ParallelError::OptimizerLacks`] where
    /// it cannot be changed.
    fn set_momentum(&mut self, momentum: f64) -> Result<(), ParallelError>;

    /// Forgets everything: the buckets are about to change, or a state to be restored.
    fn reset(&mut self);

    /// Names of the slots that a bucket has now.
    fn slots(&self, bucket: usize) -> Vec<String>;

    /// A slot's elements.
    fn slot(&self, bucket: usize, name: &str) -> Option<Tensor<1>>;

    /// Restores a slot.
    fn set_slot(&mut self, bucket: usize, name: &str, values: Tensor<1>);

    /// State beside the slots, such as a count of steps.
    fn scalars(&self) -> Vec<(String, Scalar)>;

    /// Restores a scalar.
    ///
    /// # Errors
    /// When the optimizer has no such scalar.
    fn set_scalar(&mut self, name: &str, value: Scalar) -> Result<(), ParallelError>;
}

/// Checks a momentum or beta: a share of the old that is kept.
fn below_one(name: &'static str, value: f64) -> Result<(), ParallelError> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    let reason = "it lies in [0, 1)";
    Err(ParallelError::OptimizerSetting { name, value: value.to_string(), reason })
}

/// Checks a setting that must not be negative.
fn not_negative(name: &'static str, value: f64) -> Result<(), ParallelError> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    let reason = "it must be a finite number of at least 0";
    Err(ParallelError::OptimizerSetting { name, value: value.to_string(), reason })
}

#[cfg(test)]
mod tests;
