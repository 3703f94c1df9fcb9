use bonfire_comm::{CommError, DType};

/// What can go wrong between a tensor and a wire.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Happens when a tensor has an element type that has no place on the wire.
    #[error(
        "element type {dtype} of {what} cannot travel between ranks; use f32, f64, f16 or bf16"
    )]
    UnsupportedDType {
        /// What the tensor is.
        what: String,
        /// Burn's name of the type.
        dtype: String,
    },
    /// Happens when a buffer and a tensor disagree.
    #[error("{what}: expected {expected} elements of {expected_dtype:?}, got {got} of {got_dtype}")]
    Mismatch {
        /// What was converted.
        what: String,
        /// Elements asked for.
        expected: usize,
        /// Type asked for.
        expected_dtype: DType,
        /// Elements found.
        got: usize,
        /// Type found.
        got_dtype: String,
    },
    /// Happens when a reduction without a derivative is asked for as a differentiable one.
    #[error("all_reduce with {op:?} has no derivative; use Sum or Mean")]
    NotDifferentiable {
        /// The reduction.
        op: bonfire_comm::ReduceOp,
    },
    /// Happens when a batch has too few values to have a variance.
    #[error(
        "batch normalisation in training needs at least 2 values a channel over all ranks, got \
         {count}; use a larger batch, drop the last incomplete one, or normalise by groups"
    )]
    TooFewValues {
        /// Values of every channel, over all ranks.
        count: usize,
    },
    /// Happens when a device cannot hand a tensor to the host.
    #[error("reading a tensor from its device failed: {reason}")]
    Read {
        /// The device's own words.
        reason: String,
    },
    /// Happens when a saved state lacks an entry, has one too many, or has one of another shape.
    #[error("{0}")]
    State(#[from] crate::state::StateError),
    /// Happens when a collective fails.
    #[error(transparent)]
    Comm(#[from] CommError),
}
