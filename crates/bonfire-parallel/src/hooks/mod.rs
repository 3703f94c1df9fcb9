//! Communication hooks: other ways to reduce a bucket than a plain all-reduce, with fewer bytes.
//!
//! | [`Compression`] | what travels | error feedback | bytes sent, f32 all-reduce over a ring = 1 |
//! |---|---|---|---|
//! | `Fp16`, `Bf16` | every element in 16 bits | no | 0.5 |
//! | `Int8`, `Fp8` | every element in 8 bits, a scale a block | yes | (1 + 4 / block) / 4: 0.27 |
//! | `TopK` | the largest elements and where they are | yes | ratio * ranks: 0.02 at 1 % and 2 ranks |
//! | `PowerSgd` | two thin factors of each matrix | yes | by the shapes of the model |
//!
//! *Error feedback*: what a rank's compression leaves out in one step it adds to its gradient in the
//! next. So nothing is lost, only late, unless a loss scaler discards a step: the sum over steps of what the ranks got, plus the mean over
//! ranks of what they still owe, is the sum of the exact means (Karimireddy et al. 2019,
//! arXiv:1901.09847). A gradient that is not finite reaches every rank as such, so that a loss scaler
//! sees it, and what a rank owes stays finite: see the hooks.

mod compression;
mod float;
mod half;
mod layout;
mod power_sgd;
mod quantized;
mod residual;
#[cfg(test)]
mod tests;
mod top_k;
mod vector;

use crate::ParallelError;
use crate::bucket::Segment;
use bonfire_comm::{Element, HostBuffer, ProcessGroup, ReduceOp};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::State;
use float::HookFloat;

pub use compression::Compression;

/// One bucket of gradients as a hook sees it.
#[derive(Debug, Clone, Copy)]
pub struct HookBucket<'a> {
    /// Position of the bucket, the same on every rank in every step.
    pub index: usize,
    /// The parameters in it, one behind the other.
    pub segments: &'a [Segment],
}

impl HookBucket<'_> {
    /// Number of elements up to the end of the last parameter, with what lies between them.
    pub fn num_elements(&self) -> usize {
        self.segments.last().map_or(0, |segment| segment.range.end)
    }

    /// Number of elements of all parameters, without what lies between them.
    pub fn num_values(&self) -> usize {
        self.segments.iter().map(|segment| segment.range.len()).sum()
    }
}

/// Reduces buckets in another way than a plain all-reduce, usually with fewer bytes.
pub trait CommHook: Send {
    /// Returns the hook's name.
    fn name(&self) -> &'static str;

    /// Replaces `gradients` by their mean over all ranks, exactly or nearly.
    ///
    /// The segments may be laid out anew between two steps; a hook carries what it keeps of a
    /// parameter over.
    ///
    /// # Shapes
    /// `gradients` has the elements of all segments; what follows them is left alone. Hooks of this
    /// crate compress f32 and f64, and take the plain mean of 16-bit types.
    ///
    /// # Collective
    /// Called by all ranks with the same buckets in the same order, on a thread of its own; blocks.
    /// `group` is used by nobody else meanwhile. Every rank ends with the same bits.
    ///
    /// # Errors
    /// The failures of any collective; a restored state that does not fit the parameters.
    fn reduce(
        &mut self,
        bucket: &HookBucket<'_>,
        gradients: &mut HostBuffer,
        group: &ProcessGroup,
    ) -> Result<(), ParallelError>;

    /// Returns what a checkpoint keeps of this rank, by the paths of parameters, so that it fits
    /// other buckets too.
    ///
    /// # Errors
    /// When something cannot be read.
    fn state(&self) -> Result<State, TensorError>;

    /// Restores `states`, those of all ranks at the time of saving, in the order of the ranks.
    ///
    /// With as many ranks as then, each goes on with its own. With another number each rank takes
    /// over the mean of what the ranks owed, which leaves the sum of all updates as it was.
    ///
    /// # Errors
    /// [`StateError`](bonfire_tensor::state::StateError) for entries that are missing or that the
    /// hook does not know.
    fn load_state(
        &mut self,
        states: &[State],
        rank: usize,
        world_size: usize,
    ) -> Result<(), TensorError>;

    /// Multiplies what the hook keeps of gradients by `factor`: the scale of the loss has changed by
    /// that, so gradients come with another scale from now on. Called between two steps. Default:
    /// nothing is kept.
    fn rescale(&mut self, _factor: f64) {}

    /// Returns the 16-bit type that gradients travel in, if the hook does nothing but divide by the
    /// number of ranks, cast, sum and cast back: a device does that by itself. Default: none.
    fn half(&self) -> Option<bonfire_amp::HalfType> {
        None
    }

    /// Returns the optimizer step, from 0, in which the hook acts first; steps before it use the
    /// plain all-reduce. Default 0.
    fn start_step(&self) -> u64 {
        0
    }
}

/// What a hook does with the element types that it compresses.
trait FloatHook {
    fn reduce_floats<E: HookFloat>(
        &mut self,
        bucket: &HookBucket<'_>,
        gradients: &mut [E],
        group: &ProcessGroup,
    ) -> Result<(), ParallelError>;
}

/// Hands the bucket's elements to `hook` in their type.
fn reduce_by_type(
    hook: &mut impl FloatHook,
    bucket: &HookBucket<'_>,
    gradients: &mut HostBuffer,
    group: &ProcessGroup,
) -> Result<(), ParallelError> {
    if bucket.num_elements() == 0 {
        return Ok(());
    }
    match gradients {
        HostBuffer::F32(values) => hook.reduce_floats(bucket, elements(bucket, values)?, group),
        HostBuffer::F64(values) => hook.reduce_floats(bucket, elements(bucket, values)?, group),
        HostBuffer::F16(values) => plain_mean(elements(bucket, values)?, group),
        HostBuffer::BF16(values) => plain_mean(elements(bucket, values)?, group),
        other => Err(TensorError::UnsupportedDType {
            what: format!("the gradients of bucket {}", bucket.index),
            dtype: other.dtype().to_string(),
        }
        .into()),
    }
}

fn plain_mean<T: Element>(values: &mut [T], group: &ProcessGroup) -> Result<(), ParallelError> {
    Ok(group.all_reduce(values, ReduceOp::Mean)?)
}

/// Leaves out what follows the bucket's elements.
fn elements<'a, T: Element>(
    bucket: &HookBucket<'_>,
    values: &'a mut [T],
) -> Result<&'a mut [T], TensorError> {
    let (expected, got) = (bucket.num_elements(), values.len());
    values.get_mut(..expected).ok_or_else(|| TensorError::Mismatch {
        what: format!("the gradients of bucket {}", bucket.index),
        expected,
        expected_dtype: T::DTYPE,
        got,
        got_dtype: format!("{:?}", T::DTYPE),
    })
}
