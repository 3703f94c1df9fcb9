//! Data parallelism for Burn models.
//!
//! [`DataParallel`] owns a model whose parameters are views of flat buckets, hands out replicas
//! whose gradients leave the backward pass bucket by bucket, and lets a [`FlatOptimizer`] update
//! the buckets. See `DataParallel` for the loop.

mod agreement;
mod average;
mod bucket;
mod config;
mod data_parallel;
mod error;
mod exchange;
pub mod hooks;
mod joined;
mod local_sgd;
pub mod optimizer;
mod reducer;
mod shard;

pub use average::{Averaging, ModelValues, ParameterAverage};
pub use bucket::{BucketLayout, Grain, Segment};
pub use config::{DataParallelConfig, GradientReduction, Join, LossReduction, ZeroStage};
pub use data_parallel::{
    DataParallel, GradientPart, MemoryUse, StepInProgress, StepOptions, StepReport,
};
pub use error::ParallelError;
pub use hooks::{CommHook, Compression, HookBucket};
pub use local_sgd::{LocalSgd, OuterMomentum};
pub use optimizer::{
    Adam, AdamConfig, AdamWConfig, BurnOptimizer, FlatOptimizer, FlatUpdate, OptimizerState,
    ParameterGroup, ParameterGroups, ParameterSettings, Run, Select, Sgd, SgdConfig,
};
