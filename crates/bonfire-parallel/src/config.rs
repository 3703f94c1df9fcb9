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

/// Settings of [`DataParallel`](crate::DataParallel), with PyTorch's names and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct DataParallelConfig {
    /// Capacity of a gradient bucket in MiB. Default 25.
    pub bucket_cap_mb: f64,
    /// Capacity of the first bucket in MiB, small so that communication starts early. Default 1.
    pub first_bucket_mb: f64,
    /// Accept parameters without a gradient: they contribute zero, and one that no rank used is
    /// left as it is. Default false: such a parameter is an error on every rank, if there is more
    /// than one.
    pub find_unused_parameters: bool,
    /// Broadcast running statistics from rank 0 before each synchronised forward pass. Default
    /// true.
    pub broadcast_buffers: bool,
    /// How gradients are combined. Default [`GradientReduction::MeanOverRanks`].
    pub reduction: GradientReduction,
}

impl Default for DataParallelConfig {
    fn default() -> Self {
        Self {
            bucket_cap_mb: 25.0,
            first_bucket_mb: 1.0,
            find_unused_parameters: false,
            broadcast_buffers: true,
            reduction: GradientReduction::MeanOverRanks,
        }
    }
}
