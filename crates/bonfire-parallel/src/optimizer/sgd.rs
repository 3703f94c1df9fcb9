use super::kernel::{Kernel, KernelFloat, apply};
use super::{FlatOptimizer, FlatUpdate, not_negative};
use crate::ParallelError;
use bonfire_tensor::state::{Scalar, StateError};
use burn::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};

const MOMENTUM: &str = "momentum_buffer";
/// Prefix of the scalars that name the parameters with momentum.
const STARTED: &str = "started/";

/// Settings of [`Sgd`], with PyTorch's names and defaults.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SgdConfig {
    /// Momentum factor. Default 0.
    pub momentum: f64,
    /// Dampening of the momentum. Default 0.
    pub dampening: f64,
    /// L2 penalty, added to the gradient. Default 0.
    pub weight_decay: f64,
    /// Nesterov momentum. Default false.
    pub nesterov: bool,
}

impl SgdConfig {
    /// Makes the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the momentum factor.
    pub fn with_momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Sets the dampening.
    pub fn with_dampening(self, dampening: f64) -> Self {
        Self { dampening, ..self }
    }

    /// Sets the L2 penalty.
    pub fn with_weight_decay(self, weight_decay: f64) -> Self {
        Self { weight_decay, ..self }
    }

    /// Turns Nesterov momentum on or off.
    pub fn with_nesterov(self, nesterov: bool) -> Self {
        Self { nesterov, ..self }
    }

    /// Makes the optimizer.
    ///
    /// # Errors
    /// [`ParallelError::OptimizerSetting`] for a negative setting, or Nesterov momentum without
    /// momentum or with dampening.
    pub fn init(self) -> Result<Sgd, ParallelError> {
        not_negative("momentum", self.momentum)?;
        not_negative("dampening", self.dampening)?;
        not_negative("weight_decay", self.weight_decay)?;
        if self.nesterov && (self.momentum <= 0.0 || self.dampening != 0.0) {
            return Err(ParallelError::OptimizerSetting {
                name: "nesterov",
                value: "true".to_string(),
                reason: "Nesterov momentum needs momentum > 0 and dampening = 0",
            });
        }
        Ok(Sgd { config: self, momentum: BTreeMap::new(), started: BTreeSet::new() })
    }
}

/// Stochastic gradient descent.
///
/// With gradient g, parameter p, momentum buffer b, learning rate l:
/// `g += weight_decay * p`; `b = momentum * b + (1 - dampening) * g` (`b = g` at the first step);
/// `g = g + momentum * b` with Nesterov, else `b`; `p -= l * g`.
///
/// # Reference
/// `torch.optim.SGD`.
pub struct Sgd {
    config: SgdConfig,
    momentum: BTreeMap<usize, Tensor<1>>,
    /// Paths of the parameters that have momentum.
    started: BTreeSet<String>,
}

impl FlatOptimizer for Sgd {
    fn step(&mut self, bucket: usize, update: FlatUpdate<'_>) -> Result<Tensor<1>, ParallelError> {
        let step =
            Step { config: self.config, rate: 0.0, scale: update.gradient_scale, first: false };
        if self.config.momentum == 0.0 {
            let runs = update.runs(|_| ());
            return Ok(apply(update, &runs, [], |run| Step { rate: run.rate, ..step })?.0);
        }
        let runs = update.runs(|segment| !self.started.contains(&segment.path));
        if runs.iter().any(|run| run.key) {
            let updated = update.segments.iter().zip(update.rates);
            let updated = updated.filter(|(_, rate)| rate.is_some());
            self.started.extend(updated.map(|(segment, _)| segment.path.clone()));
        }
        let momentum =
            self.momentum.remove(&bucket).unwrap_or_else(|| update.parameters.zeros_like());
        let (parameters, [momentum]) = apply(update, &runs, [momentum], |run| Step {
            rate: run.rate,
            first: run.key,
            ..step
        })?;
        self.momentum.insert(bucket, momentum);
        Ok(parameters)
    }

    fn reset(&mut self) {
        self.momentum.clear();
        self.started.clear();
    }

    fn slots(&self, bucket: usize) -> Vec<String> {
        self.momentum.get(&bucket).map(|_| MOMENTUM.to_string()).into_iter().collect()
    }

    fn slot(&self, bucket: usize, name: &str) -> Option<Tensor<1>> {
        self.momentum.get(&bucket).filter(|_| name == MOMENTUM).cloned()
    }

    fn set_slot(&mut self, bucket: usize, name: &str, values: Tensor<1>) {
        if name == MOMENTUM {
            self.momentum.insert(bucket, values);
        }
    }

    fn scalars(&self) -> Vec<(String, Scalar)> {
        let name = |path: &String| format!("{STARTED}{path}");
        self.started.iter().map(|path| (name(path), Scalar::Bool(true))).collect()
    }

    fn set_scalar(&mut self, name: &str, _value: Scalar) -> Result<(), ParallelError> {
        let Some(path) = name.strip_prefix(STARTED) else {
            return Err(StateError::Unexpected { name: name.to_string() }.into());
        };
        self.started.insert(path.to_string());
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Step {
    config: SgdConfig,
    rate: f64,
    scale: f64,
    /// No momentum yet: the buffer becomes the gradient.
    first: bool,
}

impl Kernel<0> for Step {
    fn host<E: KernelFloat>(&self, parameters: &[E], gradients: &mut [E], []: [&mut [E]; 0]) {
        let scale = E::from_f64(self.scale);
        let decay = E::from_f64(self.config.weight_decay);
        let rate = E::from_f64(self.rate);
        for (gradient, p) in gradients.iter_mut().zip(parameters) {
            *gradient = *p - rate * (*gradient * scale + decay * *p);
        }
    }

    fn device(
        &self,
        parameters: Tensor<1>,
        gradients: Tensor<1>,
        []: [Tensor<1>; 0],
    ) -> (Tensor<1>, [Tensor<1>; 0]) {
        let gradients = self.decayed(&parameters, gradients);
        (parameters - gradients.mul_scalar(self.rate), [])
    }
}

impl Step {
    fn decayed(&self, parameters: &Tensor<1>, gradients: Tensor<1>) -> Tensor<1> {
        let gradients = gradients.mul_scalar(self.scale);
        if self.config.weight_decay == 0.0 {
            return gradients;
        }
        gradients + parameters.clone().mul_scalar(self.config.weight_decay)
    }
}

impl Kernel<1> for Step {
    fn host<E: KernelFloat>(
        &self,
        parameters: &[E],
        gradients: &mut [E],
        [momentum]: [&mut [E]; 1],
    ) {
        let scale = E::from_f64(self.scale);
        let decay = E::from_f64(self.config.weight_decay);
        let rate = E::from_f64(self.rate);
        let (keep, add) = if self.first {
            (E::from_f64(0.0), E::from_f64(1.0))
        } else {
            (E::from_f64(self.config.momentum), E::from_f64(1.0 - self.config.dampening))
        };
        let ahead = E::from_f64(self.config.momentum);
        let elements = gradients.iter_mut().zip(momentum).zip(parameters);
        if self.config.nesterov {
            for ((gradient, b), p) in elements {
                let g = *gradient * scale + decay * *p;
                *b = keep * *b + add * g;
                *gradient = *p - rate * (g + ahead * *b);
            }
        } else {
            for ((gradient, b), p) in elements {
                let g = *gradient * scale + decay * *p;
                *b = keep * *b + add * g;
                *gradient = *p - rate * *b;
            }
        }
    }

    fn device(
        &self,
        parameters: Tensor<1>,
        gradients: Tensor<1>,
        [momentum]: [Tensor<1>; 1],
    ) -> (Tensor<1>, [Tensor<1>; 1]) {
        let gradients = self.decayed(&parameters, gradients);
        let momentum = if self.first {
            gradients.clone()
        } else {
            momentum.mul_scalar(self.config.momentum)
                + gradients.clone().mul_scalar(1.0 - self.config.dampening)
        };
        let direction = if self.config.nesterov {
            gradients + momentum.clone().mul_scalar(self.config.momentum)
        } else {
            momentum.clone()
        };
        (parameters - direction.mul_scalar(self.rate), [momentum])
    }
}
