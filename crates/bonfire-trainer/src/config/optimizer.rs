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
            Self::Sgd { lr, .. } | Self::AdamW { lr, .. } => lr,
        }
    }

    /// Writes the settings back into a section, every key of the kind given.
    pub(super) fn to_section(self) -> OptimizerSection {
        match self {
            Self::Sgd { lr, momentum, dampening, weight_decay, nesterov } => OptimizerSection {
                kind: Some(OptimizerKind::Sgd),
                lr: Some(lr),
                momentum: Some(momentum),
                dampening: Some(dampening),
                weight_decay: Some(weight_decay),
                nesterov: Some(nesterov),
                ..OptimizerSection::default()
            },
            Self::AdamW { lr, betas, eps, weight_decay } => OptimizerSection {
                kind: Some(OptimizerKind::AdamW),
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
        resolver.missing("optimizer.kind", "\"sgd\" or \"adamw\"");
        return sgd(section, resolver);
    };
    reject_foreign(section, kind, resolver);
    match kind {
        OptimizerKind::Sgd => sgd(section, resolver),
        OptimizerKind::AdamW => adamw(section, resolver),
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
    OptimizerPlan::Sgd { lr, momentum, dampening, weight_decay, nesterov }
}

fn adamw(section: &OptimizerSection, resolver: &mut Resolver<'_>) -> OptimizerPlan {
    let betas = section.betas.unwrap_or([0.9, 0.999]);
    for (index, beta) in betas.into_iter().enumerate() {
        let key = format!("optimizer.betas[{index}]");
        let ok = (0.0..1.0).contains(&beta);
        resolver.check(&key, beta, ok, "must be 0 or more and below 1");
    }
    let weight_decay = section.weight_decay.unwrap_or(0.01);
    OptimizerPlan::AdamW {
        lr: resolver.zero_or_more("optimizer.lr", section.lr.unwrap_or(1e-3)),
        betas,
        eps: resolver.zero_or_more("optimizer.eps", section.eps.unwrap_or(1e-8)),
        weight_decay: resolver.zero_or_more("optimizer.weight_decay", weight_decay),
    }
}

/// Rejects keys that only another kind of optimizer reads.
fn reject_foreign(section: &OptimizerSection, kind: OptimizerKind, resolver: &mut Resolver<'_>) {
    let owned = [
        ("momentum", section.momentum.is_some(), OptimizerKind::Sgd),
        ("dampening", section.dampening.is_some(), OptimizerKind::Sgd),
        ("nesterov", section.nesterov.is_some(), OptimizerKind::Sgd),
        ("betas", section.betas.is_some(), OptimizerKind::AdamW),
        ("eps", section.eps.is_some(), OptimizerKind::AdamW),
    ];
    for (key, _, owner) in owned.iter().filter(|(_, set, owner)| *set && *owner != kind) {
        let key = format!("optimizer.{key}");
        let message = format!("{key} is a key of kind \"{owner}\", not of \"{kind}\"; remove it");
        resolver.reject(&key, message);
    }
}
