//! Burn's own learner on many ranks: a `SupervisedTraining` program becomes multi-process by two
//! lines, and its model keeps [`TrainStep`](burn::train::TrainStep).
//!
//! ```no_run
//! # use burn::data::dataloader::DataLoader;
//! # use burn::train::{Learner, LearnerModel, SupervisedTraining, TrainStep, InferenceStep};
//! # use std::sync::Arc;
//! # fn program<M: LearnerModel>(
//! #     train: Arc<dyn DataLoader<<M as TrainStep>::Input>>,
//! #     valid: Arc<dyn DataLoader<<M as InferenceStep>::Input>>,
//! #     learner: Learner<M>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use bonfire_trainer::burn_learner::{DataParallelStrategy, DataParallelTraining};
//!
//! let bonfire = bonfire_trainer::init()?; // first: at the top of main
//! let training = SupervisedTraining::new(bonfire.artifact_folder("artifacts")?, train, valid)
//!     .num_epochs(10)
//!     .with_default_checkpointers()
//!     .with_data_parallel(DataParallelStrategy::new()?); // second: the last line of the builder
//! let result = training.launch(learner);
//! # Ok(())
//! # }
//! ```
//!
//! Start the program once for every rank, under torchrun, `mpirun`, `srun` or by hand with
//! torchrun's variables; alone it trains as it did before.
//!
//! # What every rank does
//!
//! All ranks start from rank 0's parameters, optimizer and scheduler, be they new or out of a
//! checkpoint, and take the same optimizer steps. The model's `step` runs on a replica whose
//! gradients are averaged over the ranks while it runs backward; the gradients that it returns are
//! those of one rank, and are ignored. What Burn's optimizer then sees (clipping, parameter groups,
//! [`TrainStep::optimize`](burn::train::TrainStep::optimize)) is the average.
//!
//! The loader of training data is best built with [`DistributedLoaderBuilder`], which splits every
//! epoch anew. Any other loader works too: each rank takes a slice of its data set, the same in all
//! epochs; the epoch ends on all ranks with the first that has no batch left, and up to
//! `world_size - 1` samples at the end of the data set are left out. The batch size is that of one
//! rank: N ranks take N batches a step.
//!
//! Rank 0 alone renders, logs, writes checkpoints and decides on early stopping; all others obey. A
//! stop by an [`Interrupter`](burn::train::Interrupter), on whichever rank, ends training on all of
//! them after the same step, and [`LearningResult`](burn::train::LearningResult) says so everywhere.
//!
//! # What the figures cover
//!
//! - **Training figures are those of rank 0's share**: 1/N of the samples of every step. Burn's
//!   metrics are computed from whole outputs inside one process, so there is no way to add them up.
//! - **Validation figures are exact**: rank 0 runs the whole validation set while the others wait.
//!   The group's deadline is for one validation batch, not for all of them.
//! - Progress counts the samples of all ranks if the loader is ours, else those of rank 0's slice.
//!
//! # Failures
//!
//! Burn's trait has no way to return an error of a rank or of the network. Such a failure prints an
//! error that names the rank at fault and ends the process with exit code 1, on every rank.
//!
//! # Not possible
//!
//! The model runs its backward pass itself, so its loss cannot be scaled: train in f32, f64 or bf16
//! ([`with_config`](DataParallelStrategy::with_config) with `mixed_precision`; the model's step casts
//! its inputs), or with [`Trainer`](crate::Trainer). Gradients are averaged over ranks, each counted alike:
//! with [`DistributedLoader`] all ranks have batches of the same size, to which the last batch of
//! an epoch is filled up with samples from its beginning, as PyTorch's `DistributedSampler` does.
//! `SupervisedTraining::gradient_checkpointing` does not reach a custom strategy: give
//! [`with_device`](DataParallelStrategy::with_device) a device that does it.

mod control;
mod loader;
mod quiet;
mod records;
mod run;
mod strategy;

pub use loader::{DistributedLoader, DistributedLoaderBuilder};
pub use strategy::{DataParallelStrategy, DataParallelTraining};
