//! The configuration as written: one struct a section, every key optional.
//!
//! The defaults named here are filled in by [`Plan::resolve`](super::Plan::resolve).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::choice;
use super::data::{CifarLabel, CorruptPolicy};
use super::one_or_many::OneOrMany;
use super::schedule::ScalingRule;
use super::transform_sections::{TransformsSection, ValidTransformsSection};

choice! {
    /// `average.kind`.
    AverageKind {
        /// Exponential moving average.
        Ema = "ema",
        /// Stochastic weight averaging: the mean over epochs.
        Swa = "swa",
    }
}

choice! {
    /// Formats of data sets that come with Bonfire.
    DataKind {
        /// IDX files (the format of MNIST), images and labels apart.
        Idx = "idx",
        /// CIFAR-10's binary version.
        Cifar10 = "cifar10",
        /// CIFAR-100's binary version.
        Cifar100 = "cifar100",
        /// Images in a folder a class.
        Folder = "folder",
        /// Lists of images and labels.
        Csv = "csv",
        /// Made-up images.
        Synthetic = "synthetic",
    }
}

choice! {
    /// Rule that turns gradients into new parameters.
    OptimizerKind {
        /// Stochastic gradient descent with momentum.
        Sgd = "sgd",
        /// Adam with weight decay as an L2 penalty.
        Adam = "adam",
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
    }
}

choice! {
    /// A rate at which a warm-up starts.
    WarmupStartKind {
        /// The rate before it is scaled with the batch.
        Base = "base",
    }
}

choice! {
    /// Course of the learning rate after its warm-up.
    ScheduleKind {
        /// Stays at the optimizer's rate.
        Constant = "constant",
        /// Falls by a factor in equal distances.
        Step = "step",
        /// Falls by a factor at given places.
        MultiStep = "multi_step",
        /// Falls along half a cosine to `min_lr` at the last step.
        Cosine = "cosine",
        /// Falls along a power to `min_lr` at the last step.
        Polynomial = "polynomial",
        /// Rises, then falls far below where it began, with momentum the other way round.
        OneCycle = "one_cycle",
        /// Falls by a factor when a validation figure no longer improves.
        ReduceOnPlateau = "reduce_on_plateau",
    }
}

choice! {
    /// What places on the course of the learning rate are counted in.
    StepUnit {
        /// Passes over the training data.
        Epoch = "epoch",
        /// Optimizer steps.
        Step = "step",
    }
}

choice! {
    /// Shape of rise and fall of one cycle.
    AnnealStrategy {
        /// Half a cosine.
        Cos = "cos",
        /// A straight line.
        Linear = "linear",
    }
}

choice! {
    /// Which values of a figure are better.
    PlateauMode {
        /// Lower ones.
        Min = "min",
        /// Higher ones.
        Max = "max",
    }
}

choice! {
    /// How far a figure has to be from its best value to be better.
    ThresholdMode {
        /// By a fraction of the best value.
        Rel = "rel",
        /// By a difference.
        Abs = "abs",
    }
}

choice! {
    /// Parameters by what they do in their layer.
    GroupKind {
        /// Scale and shift of normalisations (`gamma` and `beta`).
        Norm = "norm",
        /// Parameters called `bias`.
        Bias = "bias",
    }
}

choice! {
    /// Number types of parameters and arithmetic.
    PrecisionMode {
        /// 32-bit floats.
        F32 = "fp32" | "f32",
        /// 64-bit floats.
        F64 = "f64",
        /// Parameters in 32 bits, forward and backward passes in bfloat16.
        Bf16 = "bf16",
        /// Parameters in 32 bits, forward and backward passes in half precision with a scaled loss.
        Fp16 = "fp16",
    }
}

/// `[model]`: which model, and the model's own keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelSection {
    /// Name of the model in the registry; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// File that the training begins with, `.safetensors`, `.pt` or `.pth`; default none. Rank 0 reads
    /// it; a resumed run does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<std::path::PathBuf>,
    /// Whether the module that gives the scores of the classes stays new; default false. Only with
    /// `weights`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_head: Option<bool>,
    /// All other keys, read by the model's own configuration; see
    /// [`RunConfig::parse_model`](super::RunConfig::parse_model).
    #[serde(flatten)]
    #[schemars(skip)]
    pub keys: toml::Table,
}

/// `[data]`: where samples come from and how many a step takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DataSection {
    /// Format of the data set, `"idx"`, `"cifar10"`, `"cifar100"`, `"folder"`, `"csv"`, `"synthetic"`,
    /// or the name of a data set of the program's own; default `"idx"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Folder of the data set; required but for `synthetic` and data sets of the program's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<std::path::PathBuf>,
    /// Keys of a data set of the program's own, read by its own configuration; see
    /// [`RunConfig::parse_data`](super::RunConfig::parse_data).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub options: Option<toml::Table>,
    /// Labels of `cifar100`, `"fine"` or `"coarse"`; default `"fine"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<CifarLabel>,
    /// Name of the training split in `path`: of `folder` its folder (default `"train"`), of `csv` its
    /// list (default `"train.csv"`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<String>,
    /// Name of the validation split in `path`: of `folder` its folder (default: the first of `"val"`,
    /// `"valid"`, `"validation"` and `"test"` that exists), of `csv` its list (default `"valid.csv"`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<String>,
    /// Channels of images in files (`folder`, `csv`), 1 (grey) or 3 (colour); default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<usize>,
    /// What becomes of a file that cannot be decoded (`folder`, `csv`), `"error"` or `"skip"`; default
    /// `"error"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_corrupt: Option<CorruptPolicy>,
    /// Training samples of `synthetic`; default 1000. Validation has a fifth of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_samples: Option<usize>,
    /// `[height, width, channels]` of `synthetic`; default [32, 32, 3].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<[usize; 3]>,
    /// Classes of `synthetic`; default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_classes: Option<usize>,
    /// Seconds that a rank waits for a batch before the run ends; default 300; above 0. Without loader
    /// threads (`workers = 0`) nothing bounds the wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Samples per rank and micro-batch; default 32. Not together with `global_batch_size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    /// Samples per optimizer step over all ranks and micro-batches, instead of `batch_size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch_size: Option<usize>,
    /// Loader threads per rank; default 1; 0 loads on the training thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Batches that each loader thread makes ahead; default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch_factor: Option<usize>,
    /// Drops the incomplete last batch of an epoch instead of padding it; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_last: Option<bool>,
    /// Mean and deviation that pixels are normalised with; default: none, pixels stay in 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalize: Option<Normalize>,
    /// What becomes of training images; default: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transforms: Option<TransformsSection>,
    /// What becomes of validation images; default: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_transforms: Option<ValidTransformsSection>,
}

/// `[data.normalize]`: a pixel `x` in 0..1 becomes `(x - mean) / std`; one value for all channels, or a
/// list of one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Normalize {
    /// Mean of the pixels, in units of the 0..1 range.
    pub mean: OneOrMany<f64>,
    /// Standard deviation of the pixels, in units of the 0..1 range; above 0.
    pub std: OneOrMany<f64>,
}

/// `[optimizer]`: PyTorch's names and defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OptimizerSection {
    /// Rule, `"sgd"`, `"adam"` or `"adamw"`; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<OptimizerKind>,
    /// Learning rate, before warm-up and schedule; default 0.001.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Momentum factor (`sgd`); default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// Dampening of the momentum (`sgd`); default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dampening: Option<f64>,
    /// Weight decay: an L2 penalty for `sgd` and `adam` (default 0), decoupled for `adamw` (default
    /// 0.01).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Nesterov momentum (`sgd`); default false; needs momentum above 0 and dampening 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
    /// Decay rates of the two running averages (`adam`, `adamw`); default [0.9, 0.999].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// Term added to the denominator (`adam`, `adamw`); default 1e-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// Whether momentum follows a change of the rate at once (`sgd`); default true, as in PyTorch;
    /// false keeps the rate inside the momentum, as Keras and Caffe do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum_correction: Option<bool>,
    /// Whether parameters of at most one dimension have no weight decay unless their group sets one;
    /// default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_decay_on_norms_and_biases: Option<bool>,
    /// Parameters with settings of their own; each belongs to the first group that selects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<GroupSection>>,
}

/// `[[optimizer.groups]]`: parameters with settings of their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupSection {
    /// Pattern of whole module paths: `*` is any characters, `?` one. This or `kind` is required.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// What the parameters do, `"norm"` or `"bias"`, instead of `match`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<GroupKind>,
    /// What the learning rate is multiplied by; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_factor: Option<f64>,
    /// Weight decay; default: the optimizer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

/// `[schedule]`: course of the learning rate over optimizer steps, with the names and defaults of
/// `torch.optim.lr_scheduler`. A key that names kinds in brackets is one of theirs only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleSection {
    /// Course after the warm-up; default `"constant"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ScheduleKind>,
    /// How `optimizer.lr` (and `max_lr`) grows with the global batch: `"none"`, `"linear"`, `"sqrt"` or a
    /// factor; default `"none"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingRule>,
    /// Global batch size that the rate was chosen for; required by `"linear"` and `"sqrt"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_batch_size: Option<usize>,
    /// Optimizer steps of linear warm-up; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Epochs of linear warm-up, fractions allowed, instead of `warmup_steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_epochs: Option<f64>,
    /// Fraction of the rate at which the warm-up starts, in (0, 1]; default 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_start_factor: Option<f64>,
    /// Where the warm-up starts, instead of a fraction: `"base"` is the rate before scaling; default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_start: Option<WarmupStartKind>,
    /// Unit of `step_size` and `milestones` (`step`, `multi_step`); default `"epoch"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<StepUnit>,
    /// Units between two falls of the rate (`step`); required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_size: Option<u64>,
    /// Units, from the start of the run, at which the rate falls (`multi_step`); required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub milestones: Option<Vec<u64>>,
    /// What the rate is multiplied by at each fall (`step`, `multi_step`), in (0, 1]; default 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// Exponent of the fall (`polynomial`); default 1, a straight line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<f64>,
    /// Rate at the end (`cosine`, `polynomial`), or below which it never falls
    /// (`reduce_on_plateau`); default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr: Option<f64>,
    /// Highest rate (`one_cycle`); default `optimizer.lr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lr: Option<f64>,
    /// Share of the run in which the rate rises (`one_cycle`), in [0, 1]; default 0.3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pct_start: Option<f64>,
    /// Highest rate over first rate (`one_cycle`); default 25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub div_factor: Option<f64>,
    /// First rate over last rate (`one_cycle`); default 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_div_factor: Option<f64>,
    /// Shape of rise and fall (`one_cycle`); default `"cos"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anneal_strategy: Option<AnnealStrategy>,
    /// Whether momentum (Adam: the first beta) falls where the rate rises (`one_cycle`); default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle_momentum: Option<bool>,
    /// Lowest momentum (`one_cycle`), in [0, 1); default 0.85.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_momentum: Option<f64>,
    /// Highest momentum (`one_cycle`), in [0, 1); default 0.95.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_momentum: Option<f64>,
    /// Validation figure that is watched (`reduce_on_plateau`); default `"loss"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Which values of the figure are better (`reduce_on_plateau`); default `"min"` for the loss, required
    /// for any other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PlateauMode>,
    /// What the rate is multiplied by on a plateau (`reduce_on_plateau`), in (0, 1); default 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Validations without improvement that are tolerated (`reduce_on_plateau`); default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// What counts as an improvement (`reduce_on_plateau`); default 1e-4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Whether `threshold` is a fraction of the best value or a difference to it
    /// (`reduce_on_plateau`); default `"rel"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_mode: Option<ThresholdMode>,
    /// Validations after a fall that do not count (`reduce_on_plateau`); default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<u64>,
}

/// `[precision]`: number types.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrecisionSection {
    /// Number types, `"fp32"`, `"f64"`, `"bf16"` or `"fp16"`; default `"fp32"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PrecisionMode>,
    /// Whether `bf16` keeps parameters, gradients and optimizer in 32 bits; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_weights: Option<bool>,
    /// First scale of the loss (`fp16`); default 65536.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_scale: Option<f64>,
    /// Factor of the scale after `growth_interval` steps without an overflow (`fp16`); default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_factor: Option<f64>,
    /// Factor of the scale after an overflow (`fp16`); default 0.5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_factor: Option<f64>,
    /// Steps without an overflow after which the scale grows (`fp16`); default 2000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_interval: Option<u64>,
}

/// `[clip]`: bounds on gradients, after unscaling; default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClipSection {
    /// Bound on the norm of all gradients together; above 0. Not together with `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_norm: Option<f64>,
    /// Which norm, 2 or inf (`max_norm`); default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_type: Option<f64>,
    /// Bound on the absolute value of every element; above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Whether a norm that is infinite or no number ends the run (`max_norm`); default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_if_nonfinite: Option<bool>,
}

/// `[average]`: an average of the weights, evaluated and saved beside them; default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AverageSection {
    /// Which average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<AverageKind>,
    /// Share of the old average that stays (`ema`), in [0, 1]; default 0.999.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay: Option<f64>,
    /// Optimizer steps between two values (`ema`); default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_n_steps: Option<u64>,
    /// First optimizer step whose values are taken (`ema`), from 0; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_step: Option<u64>,
    /// First epoch at whose end values are taken (`swa`), from 0; default after four fifths of
    /// `train.max_epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_epoch: Option<u64>,
    /// Rate that the schedule leaves its course for at `start_epoch` (`swa`); default: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Epochs until that rate is reached (`lr`); default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anneal_epochs: Option<u64>,
    /// How it is reached (`lr`): `cos` (the default) or `linear`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anneal_strategy: Option<AnnealStrategy>,
}

/// `[log]`: what is printed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogSection {
    /// Seconds between two progress lines when the output is no terminal; default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_s: Option<f64>,
    /// Whether each rank writes down which samples its steps have had; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<bool>,
    /// Whether the run folder gets event files for TensorBoard; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensorboard: Option<bool>,
    /// Whether the run folder gets a page with curves, `report.html`; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<bool>,
    /// Whether rows have the norm of the gradients also where they are neither clipped nor scaled, at the price of
    /// a pass over them in every step; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<bool>,
    /// Optimizer steps between two histograms of every parameter and its gradient, in the event files; default
    /// 0, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histograms_every_n_steps: Option<u64>,
}
