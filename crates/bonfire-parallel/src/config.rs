use crate::ParallelError;
use crate::hooks::Compression;
use crate::local_sgd::LocalSgd;
use crate::optimizer::ParameterGroups;
use bonfire_amp::MixedPrecision;

/// How the gradients of ranks and micro-batches become one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum GradientReduction {
    /// Sum over micro-batches and ranks, divided by the world size: what PyTorch's
    /// `DistributedDataParallel` does.
    #[default]
    MeanOverRanks,
    /// Every sample has the same weight, whatever the sizes of the micro-batches.
    ///
    /// Each micro-batch's loss is multiplied by `weight / nominal` before the backward pass,
    /// gradients are summed over micro-batches and ranks, and the step divides by the sum of all
    /// weights of the window over all ranks. With equal sizes this is the mean over ranks.
    PerSample {
        /// Samples in an ordinary micro-batch; keeps gradients in their usual range on the way.
        nominal: f64,
    },
}

/// What the number in a loss tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LossReduction {
    /// The mean over the micro-batch's samples (or other units of weight).
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// What ranks share instead of each holding all of it.
///
/// Every rank holds one part in `world size` of each bucket. The parameters themselves are whole on
/// every rank.
///
/// # Reference
/// Rajbhandari et al., "ZeRO", SC 2020, arXiv:1910.02054; `ZeroRedundancyOptimizer` of PyTorch is
/// stage 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZeroStage {
    /// Nothing.
    #[default]
    Off,
    /// The optimizer's state (stage 1).
    Optimizer,
    /// The optimizer's state and the reduced gradients (stage 2). Inside
    /// [`no_sync`](crate::DataParallel::no_sync) gradients accumulate whole.
    Gradients,
}

/// Whether ranks may have different numbers of batches.
///
/// # Reference
/// `torch.distributed.algorithms.Join`; the divisor is its `divide_by_initial_world_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Join {
    /// All ranks take equally many steps; one that stops early is an error.
    #[default]
    Off,
    /// Ranks that ran out take part with zeros; the mean divides by the world size.
    InitialWorldSize,
    /// Ranks that ran out take part with zeros; the mean divides by the number of ranks that did
    /// not.
    ActiveRanks,
}

/// Settings of [`DataParallel`](crate::DataParallel), with PyTorch's names and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct DataParallelConfig {
    /// Capacity of a gradient bucket in MiB; a parameter of 512 KiB or more has a bucket of its own
    /// whatever the capacity, since its gradient is then reduced without a copy. Default 25.
    pub bucket_cap_mb: f64,
    /// Capacity of the first bucket in MiB, small so that communication starts early. Default 1.
    pub first_bucket_mb: f64,
    /// Accept parameters without a gradient: they contribute zero, and one that no rank used is
    /// left as it is. Default false: such a parameter is an error on every rank, if there is more
    /// than one.
    pub find_unused_parameters: bool,
    /// Promise that every window uses the parameters that this rank's first one used. Unused ones
    /// then cost nothing: no bucket waits for them. A broken promise is an error. Default false.
    pub static_graph: bool,
    /// Broadcast running statistics from rank 0 before each synchronised forward pass. Default
    /// true.
    pub broadcast_buffers: bool,
    /// How gradients are combined. Default [`GradientReduction::MeanOverRanks`].
    pub reduction: GradientReduction,
    /// What forward and backward passes see in 16 bits. Gradients arrive and travel in the type of
    /// the parameters all the same. Default none.
    pub mixed_precision: Option<MixedPrecision>,
    /// How gradients travel. Default: as they are.
    pub compression: Compression,
    /// What ranks share. Default nothing.
    pub zero_stage: ZeroStage,
    /// Average parameters now and then instead of gradients in every step. Default none.
    pub local_sgd: Option<LocalSgd>,
    /// Whether ranks may have different numbers of batches. Default no.
    pub join: Join,
    /// Steps between two comparisons of the replicas; 0 for none. Default 0.
    pub check_replicas_every: u64,
    /// Parameters with a learning rate or a weight decay of their own. Default none.
    pub parameter_groups: ParameterGroups,
}

impl Default for DataParallelConfig {
    fn default() -> Self {
        Self {
            bucket_cap_mb: 25.0,
            first_bucket_mb: 1.0,
            find_unused_parameters: false,
            static_graph: false,
            broadcast_buffers: true,
            reduction: GradientReduction::MeanOverRanks,
            mixed_precision: None,
            compression: Compression::None,
            zero_stage: ZeroStage::Off,
            local_sgd: None,
            join: Join::Off,
            check_replicas_every: 0,
            parameter_groups: ParameterGroups::default(),
        }
    }
}

impl DataParallelConfig {
    /// Checks that the settings go together.
    ///
    /// # Errors
    /// [`ParallelError::Setting`] naming the one to change.
    pub fn validate(&self) -> Result<(), ParallelError> {
        let setting =
            |name, value: String, reason| Err(ParallelError::Setting { name, value, reason });
        for (name, value) in
            [("bucket_cap_mb", self.bucket_cap_mb), ("first_bucket_mb", self.first_bucket_mb)]
        {
            if !(value > 0.0 && value.is_finite()) {
                return setting(name, value.to_string(), "must be a size in MiB above 0");
            }
        }
        let compressed = self.compression != Compression::None;
        if self.zero_stage == ZeroStage::Gradients && compressed {
            let reason = "a compressed bucket is reduced whole, stage 2 keeps parts only; use \
                          stage 1 or no compression";
            return setting("zero_stage", "2".to_string(), reason);
        }
        if let Some(local) = &self.local_sgd {
            local.validate()?;
            let period = local.period.to_string();
            if compressed || self.zero_stage != ZeroStage::Off {
                let reason =
                    "local steps exchange no gradients; leave compression and zero_stage out";
                return setting("local_sgd.period", period, reason);
            }
            if self.join != Join::Off {
                let reason = "ranks cannot run out of batches between two averages; leave join out";
                return setting("local_sgd.period", period, reason);
            }
        }
        self.compression.build()?;
        Ok(())
    }
}
