//! Configuration of a run: [`RunConfig`] as written, [`Plan`] as resolved for a world size.
//!
//! One TOML file a recipe, `--set a.b=c` overrides on top, strict keys. Reading and resolving
//! report *all* problems at once in a [`ConfigError`], each with its place, key and remedy:
//!
//! ```text
//! configs/digits.toml:12: unknown key "train.max_epoch"; did you mean "max_epochs"?
//! configs/digits.toml:17: optimizer.lr = -0.1: must be 0 or more
//! ```
//!
//! The usual way through:
//!
//! 1. [`RunConfig::load_with_overrides`] reads the file and applies the overrides;
//! 2. [`RunConfig::parse_model`] reads the model's own keys;
//! 3. [`Plan::resolve`] fills in every default for the world size of this run;
//! 4. [`Plan::agreement_entries`] is what ranks compare before step 1, and [`Plan::to_toml`] what
//!    the run folder keeps.

mod agreement;
mod average;
mod batch_limit;
mod brief;
mod checkpoint;
mod choice;
mod clip;
mod data;
mod distributed;
mod early_stopping;
mod environment;
mod error;
mod extends;
mod fast_dev_run;
mod help;
mod one_or_many;
mod optimizer;
mod overrides;
mod parameter_groups;
mod plan;
mod precision;
mod profile;
mod resolve;
mod resolve_transforms;
mod run_config;
mod schedule;
mod sections;
mod source;
mod strict;
mod suggest;
#[cfg(test)]
mod tests;
mod train;
mod transform_sections;
mod transforms;
mod write_transforms;

pub use average::AveragePlan;
pub use batch_limit::BatchLimit;
pub use checkpoint::{CheckpointPlan, CheckpointSection, Monitor, OnError};
pub use data::{CifarLabel, CorruptPolicy, DataSource};
pub use distributed::{
    AlgorithmKind, CompressionKind, DistributedPlan, DistributedSection, EngineKind,
    LocalSgdSection, TransportKind,
};
pub use early_stopping::{EarlyStoppingPlan, EarlyStoppingSection};
pub use error::{ConfigError, Excerpt, Problem};
pub use fast_dev_run::FastDevRun;
pub use help::{ModelKeys, json_schema, reference};
pub use one_or_many::OneOrMany;
pub use optimizer::OptimizerPlan;
pub use plan::{Budget, DataPlan, LogPlan, ModelPlan, Plan, TrainPlan, WeightsPlan};
pub use precision::PrecisionPlan;
pub use profile::ProfileSection;
pub use resolve_transforms::LONGEST_EDGE;
pub use run_config::{Partial, RunConfig};
pub use schedule::{
    Course, Landmark, LrScaling, OneCycle, ReduceOnPlateau, RunLength, ScalingRule, Schedule,
    SchedulePlan, SwaRate, Warmup, WarmupLength, WarmupStart,
};
pub use sections::{
    AnnealStrategy, AverageKind, AverageSection, ClipSection, DataKind, DataSection, GroupKind,
    GroupSection, LogSection, ModelSection, Normalize, OptimizerKind, OptimizerSection,
    PlateauMode, PrecisionMode, PrecisionSection, ScheduleKind, ScheduleSection, StepUnit,
    ThresholdMode, WarmupStartKind,
};
pub use train::{DeviceKind, MetricKind, TrainSection};
pub use transform_sections::{
    ColorJitterSection, ErasingValueKind, InterpolationKind, PadSection, PaddingModeKind,
    RandAugmentSection, RandomCropSection, RandomErasingSection, RandomResizedCropSection,
    RotationSection, TransformsSection, TrivialAugmentSection, ValidTransformsSection,
};
pub use transforms::{AutoAugmentPlan, CropPlan, ErasingPlan, ErasingValue, TransformsPlan};
