use super::kernel::{Kernel, KernelFloat, apply};
use super::{FlatOptimizer, FlatUpdate, Run, below_one, not_negative};
use crate::ParallelError;
use bonfire_tensor::state::{Scalar, StateError};
use burn::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};

const MOMENTUM: &str = "momentum_buffer";
/// Prefix of the scalars that name the parameters with momentum.
const STARTED: &str = "started/";

/// Settings of [`Sgd`], with PyTorch's names and defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// Momentum factor. Default 0.
    pub momentum: f64,
    /// Dampening of the momentum. Default 0.
    pub dampening: f64,
    /// L2 penalty, added to the gradient. Default 0.
    pub weight_decay: f64,
    /// Nesterov momentum. Default false.
    pub nesterov: bool,
    /// Whether momentum follows a change of the learning rate at once. Default true, as in PyTorch;
    /// see [`Sgd`].
    pub momentum_correction: bool,
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self {
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            momentum_correction: true,
        }
    }
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

    /// Sets whether momentum follows a change of the learning rate.
    pub fn with_momentum_correction(self, momentum_correction: bool) -> Self {
        Self { momentum_correction, ..self }
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
        Ok(Sgd {
            config: self,
            momentum: BTreeMap::new(),
            started: BTreeSet::new(),
            just_started: Vec::new(),
        })
    }
}

/// Stochastic gradient descent.
///
/// With gradient g, parameter p, momentum buffer b, learning rate l:
/// `g += weight_decay * p`; `b = momentum * b + (1 - dampening) * g` (`b = g` at the first step);
/// `g = g + momentum * b` with Nesterov, else `b`; `p -= l * g`.
///
/// **Momentum correction.** Other frameworks keep the rate inside the buffer: `v = momentum * v + l * g`,
/// `p -= v`. While the rate stays, `v = l * b` and both are the same. When it changes, v still has
/// the old rate in it, which is corrected by `v *= l_new / l_old`; that gives `l_new * b`, so the form
/// above is the corrected one at every step. Without `momentum_correction` it is v that is kept,
/// uncorrected, as Keras and Caffe do: for recipes that were tuned there.
///
/// # Reference
/// `torch.optim.SGD`; Goyal et al., "Accurate, Large Minibatch SGD", arXiv:1706.02677, section 3,
/// remark 2, equations 9 and 10.
pub struct Sgd {
    config: SgdConfig,
    momentum: BTreeMap<usize, Tensor<1>>,
    /// Paths of the parameters that have momentum.
    started: BTreeSet<String>,
    /// Those that have had it since the last step began.
    just_started: Vec<String>,
}

impl FlatOptimizer for Sgd {
    fn step(&mut self, bucket: usize, update: FlatUpdate<'_>) -> Result<Tensor<1>, ParallelError> {
        let step =
            Step { config: self.config, rate: 0.0, scale: update.gradient_scale, first: false };
        if self.config.momentum == 0.0 {
            let runs = update.runs(|_| ());
            return Ok(apply(update, &runs, [], |run| step.of(run, false))?.0);
        }
        if bucket == 0 {
            self.just_started.clear();
        }
        let runs = update.runs(|segment| !self.started.contains(&segment.path));
        if runs.iter().any(|run| run.key) {
            let updated = update.segments.iter().zip(update.rates);
            let updated = updated.filter(|(_, rate)| rate.is_some());
            for (segment, _) in updated {
                if self.started.insert(segment.path.clone()) {
                    self.just_started.push(segment.path.clone());
                }
            }
        }
        let momentum =
            self.momentum.remove(&bucket).unwrap_or_else(|| update.parameters.zeros_like());
        let (parameters, [momentum]) =
            apply(update, &runs, [momentum], |run| step.of(run, run.key))?;
        self.momentum.insert(bucket, momentum);
        Ok(parameters)
    }

    fn can_undo(&self) -> bool {
        true
    }

    fn undo(&mut self) {
        for path in self.just_started.drain(..) {
            self.started.remove(&path);
        }
        if self.started.is_empty() {
            self.momentum.clear();
        }
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.config.momentum)
    }

    fn set_momentum(&mut self, momentum: f64) -> Result<(), ParallelError> {
        below_one("momentum", momentum)?;
        self.config.momentum = momentum;
        Ok(())
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

/// Factors of one element's update: `b = keep * b + add * g; p -= size * (own * g + ahead * b)`,
/// or `p -= size * b` without Nesterov momentum.
struct Factors {
    keep: f64,
    add: f64,
    own: f64,
    ahead: f64,
    size: f64,
}

impl Step {
    /// The step over one run of elements.
    fn of<K>(self, run: &Run<K>, first: bool) -> Self {
        let weight_decay = run.decay.unwrap_or(self.config.weight_decay);
        Self { config: SgdConfig { weight_decay, ..self.config }, rate: run.rate, first, ..self }
    }

    fn factors(&self) -> Factors {
        let SgdConfig { momentum, dampening, momentum_correction, .. } = self.config;
        let (keep, add) = if self.first { (0.0, 1.0) } else { (momentum, 1.0 - dampening) };
        // The rate multiplies the buffer, or what enters it.
        if momentum_correction {
            Factors { keep, add, own: 1.0, ahead: momentum, size: self.rate }
        } else {
            Factors { keep, add: add * self.rate, own: self.rate, ahead: momentum, size: 1.0 }
        }
    }

    fn decayed(&self, parameters: &Tensor<1>, gradients: Tensor<1>) -> Tensor<1> {
        let gradients = gradients.mul_scalar(self.scale);
        if self.config.weight_decay == 0.0 {
            return gradients;
        }
        gradients + parameters.clone().mul_scalar(self.config.weight_decay)
    }
}

impl Kernel<0> for Step {
    #[inline(always)]
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

impl Kernel<1> for Step {
    #[inline(always)]
    fn host<E: KernelFloat>(
        &self,
        parameters: &[E],
        gradients: &mut [E],
        [momentum]: [&mut [E]; 1],
    ) {
        let scale = E::from_f64(self.scale);
        let decay = E::from_f64(self.config.weight_decay);
        let Factors { keep, add, own, ahead, size } = self.factors();
        let (keep, add, size) = (E::from_f64(keep), E::from_f64(add), E::from_f64(size));
        let (own, ahead) = (E::from_f64(own), E::from_f64(ahead));
        let elements = gradients.iter_mut().zip(momentum).zip(parameters);
        if self.config.nesterov {
            for ((gradient, b), p) in elements {
                let g = *gradient * scale + decay * *p;
                *b = keep * *b + add * g;
                *gradient = *p - size * (own * g + ahead * *b);
            }
        } else {
            for ((gradient, b), p) in elements {
                let g = *gradient * scale + decay * *p;
                *b = keep * *b + add * g;
                *gradient = *p - size * *b;
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
        let Factors { keep, add, own, ahead, size } = self.factors();
        let added = gradients.clone().mul_scalar(add);
        let momentum = if self.first { added } else { momentum.mul_scalar(keep) + added };
        let direction = if self.config.nesterov {
            gradients.mul_scalar(own) + momentum.clone().mul_scalar(ahead)
        } else {
            momentum.clone()
        };
        (parameters - direction.mul_scalar(size), [momentum])
    }
}
