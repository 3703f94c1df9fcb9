//! `[distributed]`: how ranks talk to each other, as written and as resolved.

use super::choice::choice;
use super::resolve::{MIB, Resolver};
use bonfire_parallel::{Compression, DataParallelConfig, LocalSgd, OuterMomentum, ZeroStage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

choice! {
    /// Engine that carries the collectives.
    EngineKind {
        /// `nccl` on CUDA devices, `host` on the CPU.
        Auto = "auto",
        /// NVIDIA's library, between GPUs.
        Nccl = "nccl",
        /// Processes: shared memory within a machine, TCP between machines.
        Host = "host",
        /// Threads of one process.
        Local = "local",
        /// An MPI library; `mpirun` starts the ranks.
        Mpi = "mpi",
    }
}

choice! {
    /// How the engines `host` and `local` carry collectives out.
    AlgorithmKind {
        /// By size and world, from a table measured at the start; never changes results.
        Auto = "auto",
        /// Around a ring.
        Ring = "ring",
        /// Along a binary tree.
        Tree = "tree",
        /// Along two binary trees, half of the data each.
        DoubleTree = "double_tree",
        /// Exchanges at distance 1, 2, 4, ...
        RecursiveDoubling = "recursive_doubling",
        /// Shared memory within each machine, a ring between machines.
        Hierarchical = "hierarchical",
    }
}

choice! {
    /// How the engine `host` reaches ranks of the same machine.
    TransportKind {
        /// Shared memory within a machine, TCP between machines.
        Auto = "auto",
        /// TCP everywhere.
        Tcp = "tcp",
    }
}

impl From<EngineKind> for bonfire_comm::EngineKind {
    fn from(kind: EngineKind) -> Self {
        match kind {
            EngineKind::Auto => Self::Auto,
            EngineKind::Nccl => Self::Nccl,
            EngineKind::Host => Self::Host,
            EngineKind::Local => Self::Local,
            EngineKind::Mpi => Self::Mpi,
        }
    }
}

impl From<AlgorithmKind> for bonfire_comm::Algorithm {
    fn from(kind: AlgorithmKind) -> Self {
        match kind {
            AlgorithmKind::Auto => Self::Auto,
            AlgorithmKind::Ring => Self::Ring,
            AlgorithmKind::Tree => Self::Tree,
            AlgorithmKind::DoubleTree => Self::DoubleTree,
            AlgorithmKind::RecursiveDoubling => Self::RecursiveDoubling,
            AlgorithmKind::Hierarchical => Self::Hierarchical,
        }
    }
}

impl From<TransportKind> for bonfire_comm::Transport {
    fn from(kind: TransportKind) -> Self {
        match kind {
            TransportKind::Auto => Self::Auto,
            TransportKind::Tcp => Self::Tcp,
        }
    }
}

choice! {
    /// How gradients travel.
    CompressionKind {
        /// As they are.
        None = "none",
        /// As IEEE half precision.
        Fp16 = "fp16",
        /// As bfloat16.
        Bf16 = "bf16",
        /// As 8-bit integers, with error feedback.
        Int8 = "int8",
        /// As 8-bit floats (e4m3), with error feedback.
        Fp8 = "fp8",
        /// The largest ones only, with error feedback.
        TopK = "topk",
        /// As products of thin factors, with error feedback.
        PowerSgd = "powersgd",
    }
}

/// `[distributed]`: how ranks talk to each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DistributedSection {
    /// Engine, `"auto"`, `"nccl"`, `"host"`, `"local"` or `"mpi"`; default `"auto"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// Algorithm of collectives, `"auto"`, `"ring"`, `"tree"`, `"double_tree"`,
    /// `"recursive_doubling"` or `"hierarchical"`; default `"auto"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<AlgorithmKind>,
    /// Transport within a machine, `"auto"` (shared memory) or `"tcp"`; default `"auto"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportKind>,
    /// Deadline of a collective, in seconds; default 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Size of a gradient bucket, in MiB; default 25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_cap_mb: Option<f64>,
    /// Size of the first gradient bucket, in MiB; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bucket_mb: Option<f64>,
    /// Accepts parameters without a gradient: they contribute zero; default false, which makes one
    /// an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub find_unused_parameters: Option<bool>,
    /// Sends buffers (running statistics) from rank 0 before each step; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcast_buffers: Option<bool>,
    /// Promises that every step uses the parameters that the first one used; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub static_graph: Option<bool>,
    /// How gradients travel, `"none"`, `"fp16"`, `"bf16"`, `"int8"`, `"fp8"`, `"topk"` or
    /// `"powersgd"`; default `"none"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionKind>,
    /// Elements that share a scale (`int8`, `fp8`); default 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression_block: Option<usize>,
    /// Part of the gradients that travels (`topk`); default 0.01.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression_ratio: Option<f64>,
    /// Columns of the factors (`powersgd`); default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matrix_approximation_rank: Option<usize>,
    /// Least saving for which a matrix is factored (`powersgd`); default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_compression_rate: Option<f64>,
    /// Step, counted from 0, from which gradients are factored (`powersgd`); default 1000.
    #[serde(rename = "start_powerSGD_iter", skip_serializing_if = "Option::is_none")]
    pub start_power_sgd_iter: Option<u64>,
    /// Whether what a step leaves out is added to the next (`powersgd`); default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_error_feedback: Option<bool>,
    /// Whether a step starts from the factors of the last (`powersgd`); default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<bool>,
    /// What ranks share: 0 nothing, 1 the optimizer's state, 2 gradients too; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_stage: Option<u8>,
    /// Optimizer steps between two comparisons of the replicas; default 0, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_replicas_every: Option<u64>,
    /// Averages of parameters in place of averages of gradients; default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_sgd: Option<LocalSgdSection>,
}

/// `[distributed.local_sgd]`: ranks take steps of their own and average their parameters now and
/// then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalSgdSection {
    /// Optimizer steps from one average to the next; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Steps with averaged gradients before the first local one; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_step: Option<u64>,
    /// Learning rate of the outer optimizer; default: none, the average is the result. With one,
    /// this is DiLoCo (there 0.7).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_lr: Option<f64>,
    /// Momentum of the outer optimizer; default 0.9. Needs `outer_lr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_momentum: Option<f64>,
    /// Whether that momentum is Nesterov's; default true. Needs `outer_lr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_nesterov: Option<bool>,
}

/// How ranks talk to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistributedPlan {
    /// Engine that carries the collectives.
    pub engine: EngineKind,
    /// How `host` and `local` carry collectives out.
    pub algorithm: AlgorithmKind,
    /// How `host` reaches ranks of the same machine; `None` = as the environment says.
    pub transport: Option<TransportKind>,
    /// Deadline of a collective.
    pub timeout: Duration,
    /// Size of a gradient bucket.
    pub bucket_cap_bytes: usize,
    /// Size of the first gradient bucket.
    pub first_bucket_bytes: usize,
    /// Whether a parameter may have no gradient in a step.
    pub find_unused_parameters: bool,
    /// Whether buffers are sent from rank 0 before each step.
    pub broadcast_buffers: bool,
    /// Whether every step uses the parameters that the first one used.
    pub static_graph: bool,
    /// How gradients travel.
    pub compression: Compression,
    /// What ranks share.
    pub zero_stage: ZeroStage,
    /// Optimizer steps between two comparisons of the replicas; 0 for none.
    pub check_replicas_every: u64,
    /// Averages of parameters in place of averages of gradients.
    pub local_sgd: Option<LocalSgd>,
}

impl DistributedPlan {
    /// The settings of the data-parallel layer.
    pub(crate) fn parallel(&self) -> DataParallelConfig {
        DataParallelConfig {
            bucket_cap_mb: self.bucket_cap_bytes as f64 / MIB,
            first_bucket_mb: self.first_bucket_bytes as f64 / MIB,
            find_unused_parameters: self.find_unused_parameters,
            static_graph: self.static_graph,
            broadcast_buffers: self.broadcast_buffers,
            compression: self.compression,
            zero_stage: self.zero_stage,
            local_sgd: self.local_sgd,
            check_replicas_every: self.check_replicas_every,
            ..DataParallelConfig::default()
        }
    }

    /// The word for how gradients travel.
    pub fn compression_kind(&self) -> CompressionKind {
        let mut section = DistributedSection::default();
        section.set_compression(self.compression);
        section.compression.unwrap_or(CompressionKind::None)
    }

    /// Writes the settings back into a section.
    pub(super) fn to_section(self) -> DistributedSection {
        let mut section = DistributedSection {
            engine: Some(self.engine),
            algorithm: Some(self.algorithm),
            transport: self.transport,
            timeout_s: Some(self.timeout.as_secs_f64()),
            bucket_cap_mb: Some(self.bucket_cap_bytes as f64 / MIB),
            first_bucket_mb: Some(self.first_bucket_bytes as f64 / MIB),
            find_unused_parameters: Some(self.find_unused_parameters),
            broadcast_buffers: Some(self.broadcast_buffers),
            static_graph: Some(self.static_graph),
            zero_stage: Some(match self.zero_stage {
                ZeroStage::Off => 0,
                ZeroStage::Optimizer => 1,
                ZeroStage::Gradients => 2,
            }),
            check_replicas_every: Some(self.check_replicas_every),
            local_sgd: self.local_sgd.map(|policy| LocalSgdSection {
                period: Some(policy.period),
                start_step: Some(policy.start_step),
                outer_lr: policy.outer.map(|outer| outer.learning_rate),
                outer_momentum: policy.outer.map(|outer| outer.momentum),
                outer_nesterov: policy.outer.map(|outer| outer.nesterov),
            }),
            ..DistributedSection::default()
        };
        section.set_compression(self.compression);
        section
    }
}

impl DistributedSection {
    fn set_compression(&mut self, compression: Compression) {
        let kind = match compression {
            Compression::None => CompressionKind::None,
            Compression::Fp16 => CompressionKind::Fp16,
            Compression::Bf16 => CompressionKind::Bf16,
            Compression::Int8 { block } => {
                self.compression_block = Some(block);
                CompressionKind::Int8
            }
            Compression::Fp8 { block } => {
                self.compression_block = Some(block);
                CompressionKind::Fp8
            }
            Compression::TopK { ratio } => {
                self.compression_ratio = Some(ratio);
                CompressionKind::TopK
            }
            Compression::PowerSgd {
                matrix_approximation_rank,
                min_compression_rate,
                start_iter,
                use_error_feedback,
                warm_start,
                seed: _,
            } => {
                self.matrix_approximation_rank = Some(matrix_approximation_rank);
                self.min_compression_rate = Some(min_compression_rate);
                self.start_power_sgd_iter = Some(start_iter);
                self.use_error_feedback = Some(use_error_feedback);
                self.warm_start = Some(warm_start);
                CompressionKind::PowerSgd
            }
        };
        self.compression = Some(kind);
    }

    /// The compression with its keys; `seed` is that of the run.
    fn compression(&self, seed: u64) -> Compression {
        match self.compression.unwrap_or(CompressionKind::None) {
            CompressionKind::None => Compression::None,
            CompressionKind::Fp16 => Compression::Fp16,
            CompressionKind::Bf16 => Compression::Bf16,
            CompressionKind::Int8 => {
                Compression::Int8 { block: self.compression_block.unwrap_or(64) }
            }
            CompressionKind::Fp8 => {
                Compression::Fp8 { block: self.compression_block.unwrap_or(64) }
            }
            CompressionKind::TopK => {
                Compression::TopK { ratio: self.compression_ratio.unwrap_or(0.01) }
            }
            CompressionKind::PowerSgd => Compression::PowerSgd {
                matrix_approximation_rank: self.matrix_approximation_rank.unwrap_or(1),
                min_compression_rate: self.min_compression_rate.unwrap_or(2.0),
                start_iter: self.start_power_sgd_iter.unwrap_or(1000),
                use_error_feedback: self.use_error_feedback.unwrap_or(true),
                warm_start: self.warm_start.unwrap_or(true),
                seed,
            },
        }
    }

    /// Keys that only some kinds of compression read, and whether they are set.
    fn compression_keys(&self) -> [(&'static str, bool, &'static [CompressionKind]); 7] {
        const BLOCKS: &[CompressionKind] = &[CompressionKind::Int8, CompressionKind::Fp8];
        const TOP_K: &[CompressionKind] = &[CompressionKind::TopK];
        const FACTORS: &[CompressionKind] = &[CompressionKind::PowerSgd];
        [
            ("compression_block", self.compression_block.is_some(), BLOCKS),
            ("compression_ratio", self.compression_ratio.is_some(), TOP_K),
            ("matrix_approximation_rank", self.matrix_approximation_rank.is_some(), FACTORS),
            ("min_compression_rate", self.min_compression_rate.is_some(), FACTORS),
            ("start_powerSGD_iter", self.start_power_sgd_iter.is_some(), FACTORS),
            ("use_error_feedback", self.use_error_feedback.is_some(), FACTORS),
            ("warm_start", self.warm_start.is_some(), FACTORS),
        ]
    }
}

/// Fills in the defaults and checks that the settings go together.
pub(super) fn resolve(
    section: &DistributedSection,
    seed: u64,
    resolver: &mut Resolver<'_>,
) -> DistributedPlan {
    reject_foreign(section, resolver);
    let zero_stage = match section.zero_stage.unwrap_or(0) {
        0 => ZeroStage::Off,
        1 => ZeroStage::Optimizer,
        2 => ZeroStage::Gradients,
        other => {
            resolver.check("distributed.zero_stage", other, false, "must be 0, 1 or 2");
            ZeroStage::Off
        }
    };
    let plan = DistributedPlan {
        engine: section.engine.unwrap_or(EngineKind::Auto),
        algorithm: section.algorithm.unwrap_or(AlgorithmKind::Auto),
        transport: section.transport,
        timeout: resolver.seconds("distributed.timeout_s", section.timeout_s.unwrap_or(600.0)),
        bucket_cap_bytes: resolver
            .mebibytes("distributed.bucket_cap_mb", section.bucket_cap_mb.unwrap_or(25.0)),
        first_bucket_bytes: resolver
            .mebibytes("distributed.first_bucket_mb", section.first_bucket_mb.unwrap_or(1.0)),
        find_unused_parameters: section.find_unused_parameters.unwrap_or(false),
        broadcast_buffers: section.broadcast_buffers.unwrap_or(true),
        static_graph: section.static_graph.unwrap_or(false),
        compression: section.compression(seed),
        zero_stage,
        check_replicas_every: section.check_replicas_every.unwrap_or(0),
        local_sgd: section.local_sgd.as_ref().map(|section| local_sgd(section, resolver)),
    };
    // Sizes are checked above, under their own keys.
    let layer = DataParallelConfig {
        bucket_cap_mb: DataParallelConfig::default().bucket_cap_mb,
        first_bucket_mb: DataParallelConfig::default().first_bucket_mb,
        ..plan.parallel()
    };
    if let Err(error) = layer.validate() {
        resolver.reject("distributed", format!("distributed: {error}"));
    }
    plan
}

fn local_sgd(section: &LocalSgdSection, resolver: &mut Resolver<'_>) -> LocalSgd {
    if section.period.is_none() {
        let what = "the number of steps from one average to the next";
        resolver.missing("distributed.local_sgd.period", what);
    }
    let outer = section.outer_lr.map(|learning_rate| OuterMomentum {
        learning_rate,
        momentum: section.outer_momentum.unwrap_or(OuterMomentum::default().momentum),
        nesterov: section.outer_nesterov.unwrap_or(OuterMomentum::default().nesterov),
    });
    if outer.is_none() && (section.outer_momentum.is_some() || section.outer_nesterov.is_some()) {
        let what = "the outer learning rate, to which outer_momentum and outer_nesterov belong";
        resolver.missing("distributed.local_sgd.outer_lr", what);
    }
    LocalSgd {
        period: section.period.unwrap_or(1),
        start_step: section.start_step.unwrap_or(0),
        outer,
    }
}

/// Rejects keys that only another kind of compression reads.
fn reject_foreign(section: &DistributedSection, resolver: &mut Resolver<'_>) {
    let kind = section.compression.unwrap_or(CompressionKind::None);
    for (key, set, owners) in section.compression_keys() {
        if !set || owners.contains(&kind) {
            continue;
        }
        let owners: Vec<String> = owners.iter().map(|owner| format!("\"{owner}\"")).collect();
        let key = format!("distributed.{key}");
        let message = format!(
            "{key} is a key of compression {}, not of \"{kind}\"; remove it",
            owners.join(" and ")
        );
        resolver.reject(&key, message);
    }
}
