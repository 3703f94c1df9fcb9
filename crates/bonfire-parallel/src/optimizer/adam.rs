use super::kernel::{Kernel, KernelFloat, apply};
use super::{FlatOptimizer, FlatUpdate, below_one, not_negative};
use crate::ParallelError;
use bonfire_tensor::state::{Scalar, StateError};
use burn::tensor::Tensor;
use std::collections::BTreeMap;

const FIRST: &str = "exp_avg";
const SECOND: &str = "exp_avg_sq";
/// Prefix of the scalars that count the steps of a parameter.
const STEP: &str = "step/";

/// Settings of [`Adam`] with decoupled weight decay, with the names and defaults of
/// `torch.optim.AdamW`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay rates of the first and the second moment. Default 0.9 and 0.999.
    pub betas: (f64, f64),
    /// Added to the denominator. Default 1e-8.
    pub eps: f64,
    /// Decoupled weight decay. Default 0.01.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Settings of [`Adam`] with weight decay as an L2 penalty, with the names and defaults of
/// `torch.optim.Adam`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Decay rates of the first and the second moment. Default 0.9 and 0.999.
    pub betas: (f64, f64),
    /// Added to the denominator. Default 1e-8.
    pub eps: f64,
    /// L2 penalty, added to the gradient. Default 0.
    pub weight_decay: f64,
}

impl Default for AdamConfig {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }
}

macro_rules! settings {
    ($config:ty, decoupled: $decoupled:literal) => {
        impl $config {
            /// Makes the default settings.
            pub fn new() -> Self {
                Self::default()
            }

            /// Sets the decay rates of the moments.
            pub fn with_betas(self, first: f64, second: f64) -> Self {
                Self { betas: (first, second), ..self }
            }

            /// Sets what is added to the denominator.
            pub fn with_eps(self, eps: f64) -> Self {
                Self { eps, ..self }
            }

            /// Sets the weight decay.
            pub fn with_weight_decay(self, weight_decay: f64) -> Self {
                Self { weight_decay, ..self }
            }

            /// Makes the optimizer.
            ///
            /// # Errors
            /// [`ParallelError::OptimizerSetting`] for a negative setting or a beta outside
            /// `[0, 1)`.
            pub fn init(self) -> Result<Adam, ParallelError> {
                let Self { betas, eps, weight_decay } = self;
                Adam::new(Settings { betas, eps, weight_decay, decoupled: $decoupled })
            }
        }
    };
}

settings!(AdamWConfig, decoupled: true);
settings!(AdamConfig, decoupled: false);

#[derive(Debug, Clone, Copy)]
struct Settings {
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
}

/// Adam, with decoupled weight decay ([`AdamWConfig`]) or with an L2 penalty ([`AdamConfig`]).
///
/// With gradient g, parameter p, moments m and v, learning rate l and step t (from 1): first
/// `p *= 1 - l * weight_decay` if decoupled, `g += weight_decay * p` if not; then
/// `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + (1 - beta2) * g^2`;
/// `p -= l / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)`.
///
/// # Reference
/// Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101; `torch.optim.Adam` and
/// `torch.optim.AdamW`.
pub struct Adam {
    settings: Settings,
    moments: BTreeMap<usize, [Tensor<1>; 2]>,
    /// Steps of each parameter, by path.
    steps: BTreeMap<String, u64>,
    /// Parameters of the last step.
    just_counted: Vec<String>,
}

impl Adam {
    fn new(settings: Settings) -> Result<Self, ParallelError> {
        not_negative("eps", settings.eps)?;
        not_negative("weight_decay", settings.weight_decay)?;
        for beta in [settings.betas.0, settings.betas.1] {
            below_one("betas", beta)?;
        }
        let (moments, steps) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { settings, moments, steps, just_counted: Vec::new() })
    }
}

impl FlatOptimizer for Adam {
    fn step(&mut self, bucket: usize, update: FlatUpdate<'_>) -> Result<Tensor<1>, ParallelError> {
        if bucket == 0 {
            self.just_counted.clear();
        }
        for (segment, rate) in update.segments.iter().zip(update.rates) {
            if rate.is_some() {
                if update.only_if.is_some() {
                    self.just_counted.push(segment.path.clone());
                }
                match self.steps.get_mut(&segment.path) {
                    Some(steps) => *steps += 1,
                    None => drop(self.steps.insert(segment.path.clone(), 1)),
                }
            }
        }
        let (settings, scale) = (self.settings, update.gradient_scale);
        let runs = update.runs(|segment| self.steps.get(&segment.path).copied().unwrap_or(1));
        let moments = self
            .moments
            .remove(&bucket)
            .unwrap_or_else(|| [update.parameters.zeros_like(), update.parameters.zeros_like()]);
        let (parameters, moments) = apply(update, &runs, moments, |run| {
            let bias = |beta: f64| 1.0 - beta.powi(i32::try_from(run.key).unwrap_or(i32::MAX));
            let bias = (bias(settings.betas.0), bias(settings.betas.1));
            let weight_decay = run.decay.unwrap_or(settings.weight_decay);
            Step { settings: Settings { weight_decay, ..settings }, scale, rate: run.rate, bias }
        })?;
        self.moments.insert(bucket, moments);
        Ok(parameters)
    }

    fn can_undo(&self) -> bool {
        true
    }

    fn undo(&mut self) {
        for path in self.just_counted.drain(..) {
            match self.steps.get_mut(&path) {
                Some(steps) if *steps > 1 => *steps -= 1,
                _ => drop(self.steps.remove(&path)),
            }
        }
        if self.steps.is_empty() {
            self.moments.clear();
        }
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.settings.betas.0)
    }

    fn set_momentum(&mut self, momentum: f64) -> Result<(), ParallelError> {
        below_one("betas", momentum)?;
        self.settings.betas.0 = momentum;
        Ok(())
    }

    fn reset(&mut self) {
        self.moments.clear();
        self.steps.clear();
    }

    fn slots(&self, bucket: usize) -> Vec<String> {
        match self.moments.get(&bucket) {
            Some(_) => vec![FIRST.to_string(), SECOND.to_string()],
            None => Vec::new(),
        }
    }

    fn slot(&self, bucket: usize, name: &str) -> Option<Tensor<1>> {
        let [first, second] = self.moments.get(&bucket)?;
        match name {
            FIRST => Some(first.clone()),
            SECOND => Some(second.clone()),
            _ => None,
        }
    }

    fn set_slot(&mut self, bucket: usize, name: &str, values: Tensor<1>) {
        let moments = self
            .moments
            .entry(bucket)
            .or_insert_with(|| [values.zeros_like(), values.zeros_like()]);
        match name {
            FIRST => moments[0] = values,
            SECOND => moments[1] = values,
            _ => {}
        }
    }

    fn scalars(&self) -> Vec<(String, Scalar)> {
        let named =
            |(path, steps): (&String, &u64)| (format!("{STEP}{path}"), Scalar::Uint(*steps));
        self.steps.iter().map(named).collect()
    }

    fn set_scalar(&mut self, name: &str, value: Scalar) -> Result<(), ParallelError> {
        match (name.strip_prefix(STEP), value) {
            (Some(path), Scalar::Uint(steps)) => {
                self.steps.insert(path.to_string(), steps);
                Ok(())
            }
            _ => Err(StateError::Unexpected { name: name.to_string() }.into()),
        }
    }
}

#[derive(Clone, Copy)]
struct Step {
    settings: Settings,
    scale: f64,
    rate: f64,
    /// 1 - beta^t of both moments.
    bias: (f64, f64),
}

impl Step {
    /// What the parameters are multiplied by, and the share of them that is added to the gradients.
    fn decay(&self) -> (f64, f64) {
        let Settings { weight_decay, decoupled, .. } = self.settings;
        if decoupled { (1.0 - self.rate * weight_decay, 0.0) } else { (1.0, weight_decay) }
    }
}

impl Kernel<2> for Step {
    #[inline(always)]
    fn host<E: KernelFloat>(
        &self,
        parameters: &[E],
        gradients: &mut [E],
        [first, second]: [&mut [E]; 2],
    ) {
        let (beta1, beta2) = self.settings.betas;
        let scale = E::from_f64(self.scale);
        let (shrink, penalty) = self.decay();
        let (shrink, penalty) = (E::from_f64(shrink), E::from_f64(penalty));
        let (keep1, add1) = (E::from_f64(beta1), E::from_f64(1.0 - beta1));
        let (keep2, add2) = (E::from_f64(beta2), E::from_f64(1.0 - beta2));
        let size = E::from_f64(self.rate / self.bias.0);
        let root = E::from_f64(self.bias.1.sqrt());
        let eps = E::from_f64(self.settings.eps);
        for (((gradient, m), v), p) in gradients.iter_mut().zip(first).zip(second).zip(parameters) {
            let g = *gradient * scale + penalty * *p;
            *m = keep1 * *m + add1 * g;
            *v = keep2 * *v + add2 * g * g;
            *gradient = *p * shrink - size * *m / (v.sqrt() / root + eps);
        }
    }

    fn device(
        &self,
        parameters: Tensor<1>,
        gradients: Tensor<1>,
        [first, second]: [Tensor<1>; 2],
    ) -> (Tensor<1>, [Tensor<1>; 2]) {
        let (beta1, beta2) = self.settings.betas;
        let (shrink, penalty) = self.decay();
        let gradients = gradients.mul_scalar(self.scale) + parameters.clone().mul_scalar(penalty);
        let first = first.mul_scalar(beta1) + gradients.clone().mul_scalar(1.0 - beta1);
        let second = second.mul_scalar(beta2) + gradients.square().mul_scalar(1.0 - beta2);
        let denominator =
            second.clone().sqrt().div_scalar(self.bias.1.sqrt()).add_scalar(self.settings.eps);
        let change = first.clone().div(denominator).mul_scalar(self.rate / self.bias.0);
        (parameters.mul_scalar(shrink) - change, [first, second])
    }
}
