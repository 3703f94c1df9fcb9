//! The optimizer, resolved.

use super::resolve::Resolver;
use super::sections::{OptimizerKind, OptimizerSection};

/// An optimizer with all its settings, checked as PyTorch checks them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum OptimizerPlan {
    /// Stochastic gradient descent, as `torch.optim.SGD`.
    Sgd {
        /// Learning rate before the schedule; 0 or more.
        lr: f64,
        /// Momentum factor; 0 or more, 0 keeps no momentum.
        momentum: f64,
        /// Dampening of the momentum.
        dampening: f64,
        /// L2 penalty; 0 or more.
        weight_decay: f64,
        /// Nesterov momentum.
        nesterov: bool,
        /// Whether momentum follows a change of the rate at once; see
        /// [`Sgd`](bonfire_parallel::Sgd).
        momentum_correction: bool,
    },
    /// Adam with weight decay as an L2 penalty, as `torch.optim.Adam`.
    Adam {
        /// Learning rate before the schedule; 0 or more.
        lr: f64,
        /// Decay rates of the running averages of the gradient and its square, each in [0, 1).
        betas: [f64; 2],
        /// Term added to the denominator; 0 or more.
        eps: f64,
        /// L2 penalty; 0 or more.
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay, as `torch.optim.AdamW`.
    AdamW {
        /// Learning rate before the schedule; 0 or more.
        lr: f64,
        /// Decay rates of the running averages of the gradient and its square, each in [0, 1).
        betas: [f64; 2],
        /// Term added to the denominator; 0 or more.
        eps: f64,
        /// Decoupled weight decay; 0 or more.
        weight_decay: f64,
    },
}

impl OptimizerPlan {
    /// Returns the learning rate before the schedule.
    pub fn lr(&self) -> f64 {
        match *self {
            Self::Sgd { lr, .. } | Self::Adam { lr, .. } | Self::AdamW { lr, .. } => lr,
        }
    }

    /// The same with another learning rate.
    #[must_use]
    pub fn with_lr(mut self, rate: f64) -> Self {
        match &mut self {
            Self::Sgd { lr, .. } | Self::Adam { lr, .. } | Self::AdamW { lr, .. } => *lr = rate,
        }
        self
    }

    /// Returns the weight decay, where no group of parameters sets another.
    pub fn weight_decay(&self) -> f64 {
        match *self {
            Self::Sgd { weight_decay, .. }
            | Self::Adam { weight_decay, .. }
            | Self::AdamW { weight_decay, .. } => weight_decay,
        }
    }

    fn kind(self) -> OptimizerKind {
        match self {
            Self::Sgd { .. } => OptimizerKind::Sgd,
            Self::Adam { .. } => OptimizerKind::Adam,
            Self::AdamW { .. } => OptimizerKind::AdamW,
        }
    }

    /// Writes the settings back into a section, every key of the kind given.
    pub(super) fn to_section(self) -> OptimizerSection {
        match self {
            Self::Sgd { lr, momentum, dampening, weight_decay, nesterov, momentum_correction } => {
                OptimizerSection {
                    kind: Some(OptimizerKind::Sgd),
                    lr: Some(lr),
                    momentum: Some(momentum),
                    dampening: Some(dampening),
                    weight_decay: Some(weight_decay),
                    nesterov: Some(nesterov),
                    momentum_correction: Some(momentum_correction),
                    ..OptimizerSection::default()
                }
            }
            Self::Adam { lr, betas, eps, weight_decay }
            | Self::AdamW { lr, betas, eps, weight_decay } => OptimizerSection {
                kind: Some(self.kind()),
                lr: Some(lr),
                betas: Some(betas),
                eps: Some(eps),
                weight_decay: Some(weight_decay),
                ..OptimizerSection::default()
            },
        }
    }
}

/// Fills in PyTorch's defaults and checks its limits.
pub(super) fn resolve(section: &OptimizerSection, resolver: &mut Resolver<'_>) -> OptimizerPlan {
    let Some(kind) = section.kind else {
        resolver.missing("optimizer.kind", "\"sgd\", \"adam\" or \"adamw\"");
        return sgd(section, resolver);
    };
    reject_foreign(section, kind, resolver);
    match kind {
        OptimizerKind::Sgd => sgd(section, resolver),
        OptimizerKind::Adam => {
            let (lr, betas, eps, weight_decay) = adam(section, 0.0, resolver);
            OptimizerPlan::Adam { lr, betas, eps, weight_decay }
        }
        OptimizerKind::AdamW => {
            let (lr, betas, eps, weight_decay) = adam(section, 0.01, resolver);
            OptimizerPlan::AdamW { lr, betas, eps, weight_decay }
        }
    }
}

fn sgd(section: &OptimizerSection, resolver: &mut Resolver<'_>) -> OptimizerPlan {
    let lr = resolver.zero_or_more("optimizer.lr", section.lr.unwrap_or(1e-3));
    let momentum = resolver.zero_or_more("optimizer.momentum", section.momentum.unwrap_or(0.0));
    let dampening = section.dampening.unwrap_or(0.0);
    resolver.check("optimizer.dampening", dampening, dampening.is_finite(), "must be finite");
    let weight_decay = section.weight_decay.unwrap_or(0.0);
    let weight_decay = resolver.zero_or_more("optimizer.weight_decay", weight_decay);
    let nesterov = section.nesterov.unwrap_or(false);
    if nesterov && (momentum == 0.0 || dampening != 0.0) {
        let message = format!(
            "optimizer.nesterov = true: needs momentum above 0 (it is {momentum}) and dampening 0 \
             (it is {dampening})"
        );
        resolver.reject("optimizer.nesterov", message);
    }
    let momentum_correction = section.momentum_correction.unwrap_or(true);
    OptimizerPlan::Sgd { lr, momentum, dampening, weight_decay, nesterov, momentum_correction }
}

/// Learning rate, betas, eps and weight decay.
fn adam(
    section: &OptimizerSection,
    weight_decay: f64,
    resolver: &mut Resolver<'_>,
) -> (f64, [f64; 2], f64, f64) {
    let betas = section.betas.unwrap_or([0.9, 0.999]);
    for (index, beta) in betas.into_iter().enumerate() {
        let key = format!("optimizer.betas[{index}]");
        let ok = (0.0..1.0).contains(&beta);
        resolver.check(&key, beta, ok, "must be 0 or more and below 1");
    }
    let lr = resolver.zero_or_more("optimizer.lr", section.lr.unwrap_or(1e-3));
    let eps = resolver.zero_or_more("optimizer.eps", section.eps.unwrap_or(1e-8));
    let weight_decay = section.weight_decay.unwrap_or(weight_decay);
    (lr, betas, eps, resolver.zero_or_more("optimizer.weight_decay", weight_decay))
}

/// Rejects keys that only another kind of optimizer reads.
fn reject_foreign(section: &OptimizerSection, kind: OptimizerKind, resolver: &mut Resolver<'_>) {
    let sgd = kind == OptimizerKind::Sgd;
    let owned = [
        ("momentum", section.momentum.is_some() && !sgd, "\"sgd\""),
        ("dampening", section.dampening.is_some() && !sgd, "\"sgd\""),
        ("nesterov", section.nesterov.is_some() && !sgd, "\"sgd\""),
        ("momentum_correction", section.momentum_correction.is_some() && !sgd, "\"sgd\""),
        ("betas", section.betas.is_some() && sgd, "\"adam\" and \"adamw\""),
        ("eps", section.eps.is_some() && sgd, "\"adam\" and \"adamw\""),
    ];
    for (key, _, owners) in owned.iter().filter(|(_, foreign, _)| *foreign) {
        let key = format!("optimizer.{key}");
        let message = format!("{key} is a key of kind {owners}, not of \"{kind}\"; remove it");
        resolver.reject(&key, message);
    }
}
