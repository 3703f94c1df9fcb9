use crate::config::OptimizerPlan;
use bonfire_parallel::{AdamConfig, AdamWConfig, FlatOptimizer, ParallelError, SgdConfig};

/// Makes the optimizer that a plan describes.
pub(crate) fn build(plan: &OptimizerPlan) -> Result<Box<dyn FlatOptimizer>, ParallelError> {
    Ok(match *plan {
        OptimizerPlan::Sgd {
            momentum,
            dampening,
            weight_decay,
            nesterov,
            momentum_correction,
            ..
        } => Box::new(
            SgdConfig { momentum, dampening, weight_decay, nesterov, momentum_correction }
                .init()?,
        ),
        OptimizerPlan::Adam { betas: [first, second], eps, weight_decay, .. } => {
            Box::new(AdamConfig { betas: (first, second), eps, weight_decay }.init()?)
        }
        OptimizerPlan::AdamW { betas: [first, second], eps, weight_decay, .. } => {
            Box::new(AdamWConfig { betas: (first, second), eps, weight_decay }.init()?)
        }
    })
}
