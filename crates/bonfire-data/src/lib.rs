//! Data for data-parallel training: data sets, deterministic sharded sampling, and a prefetching
//! loader whose position can be saved and resumed, also with another number of ranks.
//!
//! The crate knows neither Burn nor the communicator: who takes part is a [`Shard`], and a batch is
//! whatever the user's [`Collate`] makes of a list of items.
//!
//! # Invariants
//!
//! - The order of an epoch depends on `seed + epoch` and on the number of samples, on nothing else.
//! - What [`Dataset::get`] returns depends on its [`SampleContext`] only, so neither the number of
//!   workers nor the number of shards changes a sample.
//! - All shards yield the same number of batches in an epoch, so collectives stay aligned.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use bonfire_data::{DataError, DataLoader, InMemoryDataset, LoaderConfig, Shard};
//!
//! # fn main() -> Result<(), DataError> {
//! let dataset = Arc::new(InMemoryDataset::new((0..10).collect()));
//! let sum = Arc::new(|items: Vec<i32>| Ok::<i32, DataError>(items.iter().sum()));
//! let config = LoaderConfig { batch_size: 4, workers: 2, shuffle: true, ..Default::default() };
//! let loader = DataLoader::new(dataset, sum, config);
//!
//! let mut total = 0;
//! for batch in loader.batches(Shard::whole(), 0, 0)? {
//!     total += batch?.data.unwrap_or(0);
//! }
//! assert_eq!(total, 45);
//! # Ok(())
//! # }
//! ```

mod batches;
mod builder;
mod cifar;
mod class_names;
mod collate;
mod dataset;
mod decode;
mod error;
mod idx;
mod idx_images;
mod image;
mod image_files;
mod image_folder;
mod image_list;
mod image_set_problem;
mod loader;
mod memory;
mod permutation;
mod problems;
mod random;
mod sampler;
mod shard;
mod shard_batches;
mod synthetic;
pub mod transform;
mod transformed;
mod workers;

pub use batches::{Batches, LoadedBatch};
pub use cifar::{Cifar, CifarImages};
pub use class_names::{MIN_CLASSES, check_classes};
pub use collate::{BatchContext, Collate};
pub use dataset::{Dataset, DatasetDigest, SampleContext};
pub use decode::{Channels, IMAGE_SUFFIXES, decode as decode_image};
pub use error::{DataError, IdxProblem};
pub use idx::MAX_IDX_BYTES;
pub use idx_images::{IdxImages, Split};
pub use image::{Image, ImageDataset, ImageSample, Pixels, Skipped};
pub use image_files::{FileOptions, ImageFiles, OnCorrupt};
pub use image_folder::{TRAIN_FOLDER, VALID_FOLDERS, holds_classes};
pub use image_set_problem::ImageSetProblem;
pub use loader::{DataLoader, LoaderConfig, Padding};
pub use memory::InMemoryDataset;
pub use random::RandomSource;
pub use sampler::{DistributedSampler, SamplerConfig};
pub use shard::Shard;
pub use shard_batches::{SampleRef, ShardBatch, ShardBatches};
pub use synthetic::SyntheticImages;
pub use transformed::Transformed;
