//! Data-parallel training of [Burn](https://burn.dev) models: one process a device, gradients
//! averaged over all of them while the backward pass still runs.
//!
//! This crate gathers the crates of Bonfire under one name and has no code of its own. What most
//! programs need is in the [`prelude`].
//!
//! # Four ways in
//!
//! **A recipe.** Data and one of the [`models`] named in a TOML file need no Rust at all:
//! `bonfire train configs/digits.toml --nproc-per-node 2`. A program that adds models of its own to
//! the recipes gets the same command line from the crate `bonfire-cli`.
//!
//! **A trainer.** A Burn module that implements [`Learnable`](trainer::Learnable) is trained by
//! [`Trainer::fit`](trainer::Trainer::fit), which brings evaluation over all ranks, checkpoints,
//! metrics and callbacks. Every [`ImageClassifier`](nn::ImageClassifier) implements it already.
//!
//! **A loop.** [`DataParallel`](parallel::DataParallel) is the layer below, the counterpart of
//! PyTorch's `DistributedDataParallel`. The loop stays yours:
//!
//! ```no_run
//! use bonfire::models::MlpConfig;
//! use bonfire::prelude::*;
//! use burn::tensor::Device;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Who am I? A launcher has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or I am alone.
//! let group = match RankEnv::detect()? {
//!     Some(env) => init_process_group(&env, InitOptions::default())?,
//!     None => ProcessGroup::single(),
//! };
//!
//! // Every rank reads its shard of every epoch.
//! let device = Device::flex();
//! let digits = IdxImages::open_folder("data/digits", Split::Train)?;
//! let image = ImageShape { channels: 1, height: digits.rows(), width: digits.cols() };
//! let num_classes = digits.num_classes();
//! let collate = ImageCollate::new(image, None, &device);
//! let config = LoaderConfig { batch_size: 32, shuffle: true, ..LoaderConfig::default() };
//! let loader = DataLoader::new(Arc::new(digits), Arc::new(collate), config);
//! let shard = Shard::new(group.rank(), group.world_size())?;
//!
//! // All ranks start from rank 0's parameters, and end every step with the same ones.
//! let model = MlpConfig::default().init(image, num_classes, &device.autodiff())?;
//! let mut parallel = DataParallel::new(model, &group, DataParallelConfig::default())?;
//! let mut optimizer = SgdConfig::new().with_momentum(0.9).init()?;
//! for epoch in 0..10 {
//!     for batch in loader.batches(shard, epoch, 0)? {
//!         match batch?.data {
//!             Some(batch) => {
//!                 let loss = cross_entropy(parallel.replica()?.forward(batch.images), batch.targets);
//!                 parallel.backward(loss)?;
//!             }
//!             // The other ranks have a batch: take part with zeros.
//!             None => parallel.backward_without_samples()?,
//!         }
//!         parallel.step(&mut optimizer, 0.1)?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **Burn's learner.** A program of `SupervisedTraining` stays what it is:
//! [`bonfire::init()`](init) at the top of `main` and one line of the builder make it
//! multi-process. See [`trainer::burn_learner`].
//!
//! # Words
//!
//! A *rank* is one process of a run, a *group* a set of ranks that communicate, a *shard* the part
//! of the data that one rank reads, a *replica* one rank's copy of the model.

pub use bonfire_amp as amp;
pub use bonfire_comm as comm;
pub use bonfire_data as data;
pub use bonfire_models as models;
pub use bonfire_nn as nn;
pub use bonfire_parallel as parallel;
pub use bonfire_tensor as tensor;
pub use bonfire_trainer as trainer;

pub use bonfire_trainer::{Context, SpawnError, init, init_with, spawn, spawn_processes};

/// What most training programs name.
pub mod prelude {
    pub use bonfire_amp::{Clip, GradScaler, GradScalerConfig, MixedPrecision};
    pub use bonfire_comm::{InitOptions, ProcessGroup, RankEnv, ReduceOp, init_process_group};
    pub use bonfire_data::{
        Collate, DataError, DataLoader, Dataset, IdxImages, InMemoryDataset, LoaderConfig, Padding,
        Shard, Split, Transformed,
    };
    pub use bonfire_nn::{
        ImageClassifier, ImageShape, Norm, NormConfig, NormKind, SyncBatchNormConfig,
        connect_sync_batchnorm, convert_sync_batchnorm, correct_predictions, cross_entropy,
        cross_entropy_mixed, cross_entropy_smoothed,
    };
    pub use bonfire_parallel::{
        AdamConfig, AdamWConfig, BurnOptimizer, Compression, DataParallel, DataParallelConfig,
        FlatOptimizer, Join, LocalSgd, OuterMomentum, ParameterGroup, ParameterGroups, SgdConfig,
        StepOptions, ZeroStage,
    };
    pub use bonfire_trainer::config::{Course, OptimizerPlan, SchedulePlan};
    pub use bonfire_trainer::{
        BatchSource, Callback, FitReport, ImageBatch, ImageCollate, Learnable, ProgressPrinter,
        StepContext, StepOutput, StopFlag, Trainer, TrainerConfig, WeightAverage,
        keep_freed_memory,
    };
}
