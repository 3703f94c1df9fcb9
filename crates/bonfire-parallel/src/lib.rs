//! Data parallelism for Burn models.
//!
//! [`DataParallel`] owns a model whose parameters are views of flat buckets, hands out replicas
//! whose gradients leave the backward pass bucket by bucket, and lets a [`FlatOptimizer`] update
//! the buckets. See `DataParallel` for the loop.

mod agreement;
mod bucket;
mod config;
mod data_parallel;
mod error;
pub mod optimizer;
mod reducer;

pub use bucket::{BucketLayout, Segment};
pub use config::{DataParallelConfig, GradientReduction, LossReduction};
pub use data_parallel::{DataParallel, StepReport};
pub use error::ParallelError;
pub use optimizer::{
    AdamW, AdamWConfig, BurnOptimizer, FlatOptimizer, FlatUpdate, OptimizerState, Run, Sgd,
    SgdConfig,
};
