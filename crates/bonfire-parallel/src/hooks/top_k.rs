//! Gradients of which only the largest elements travel, with error feedback.

use super::float::{HookFloat, Magnitudes};
use super::layout::grown;
use super::residual::Residuals;
use super::vector::add;
use super::{CommHook, FloatHook, HookBucket, plain_mean, reduce_by_type};
use crate::ParallelError;
use bonfire_comm::{CommError, HostBuffer, Operation, ProcessGroup};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::State;

const INDEX_BYTES: usize = size_of::<u32>();

/// Sends the elements of (gradient + residual) with the largest magnitudes, of equal ones those with
/// the lowest indices; the rest stays in the residual.
///
/// All ranks gather the (index, value) pairs of all and add them up in the order of the ranks, divided
/// by the world size. An element that is not finite counts as the largest; so each rank that has one
/// sends one, and what was owed of those elements is forgotten. A bucket of more than 2^32 elements,
/// whose indices do not fit, is reduced plainly.
///
/// # Reference
/// Aji and Heafield 2017, arXiv:1704.05021; Stich et al. 2018, arXiv:1809.07599.
pub(super) struct TopK {
    ratio: f64,
    residuals: Residuals,
    magnitudes: Magnitudes,
    messages: Vec<u8>,
}

impl TopK {
    /// `ratio` of a bucket's elements travels, in (0, 1].
    pub(super) fn new(ratio: f64) -> Self {
        let (residuals, magnitudes) = (Residuals::new(), Magnitudes::default());
        Self { ratio, residuals, magnitudes, messages: Vec::new() }
    }

    fn count(&self, len: usize) -> usize {
        ((self.ratio * len as f64) as usize).clamp(1, len)
    }
}

impl FloatHook for TopK {
    fn reduce_floats<E: HookFloat>(
        &mut self,
        bucket: &HookBucket<'_>,
        gradients: &mut [E],
        group: &ProcessGroup,
    ) -> Result<(), ParallelError> {
        if u32::try_from(gradients.len()).is_err() {
            return plain_mean(gradients, group);
        }
        let (rank, ranks) = (group.rank(), group.world_size());
        let count = self.count(bucket.num_values());
        let residual = self.residuals.own::<E>(bucket.index, bucket.segments)?;
        let part_bytes = count * (INDEX_BYTES + size_of::<E>());
        let messages = grown(&mut self.messages, ranks * part_bytes);

        add(residual, gradients);
        let magnitudes = grown(E::magnitudes(&mut self.magnitudes), residual.len());
        let largest = Largest::of(residual, count, magnitudes);
        largest.move_into(residual, &mut messages[rank * part_bytes..][..part_bytes]);
        group.run_in_place(Operation::AllGather, messages)?;

        gradients.fill(E::ZERO);
        let divisor = E::from_f64(ranks as f64);
        for message in messages.chunks_exact(part_bytes) {
            add_pairs(message, divisor, gradients)?;
        }
        Ok(())
    }
}

/// Which elements are the `count` largest.
struct Largest<E: HookFloat> {
    count: usize,
    /// Magnitude of the smallest of them.
    threshold: E::Magnitude,
    /// How many of that very magnitude are among them.
    ties: usize,
    all_finite: bool,
}

impl<E: HookFloat> Largest<E> {
    /// `magnitudes` is scratch of the length of `values`; `count` is at least 1.
    fn of(values: &[E], count: usize, magnitudes: &mut [E::Magnitude]) -> Self {
        for (magnitude, value) in magnitudes.iter_mut().zip(values) {
            *magnitude = value.magnitude();
        }
        let at = values.len() - count;
        let (_, threshold, above) = magnitudes.select_nth_unstable(at);
        let larger = above.iter().filter(|magnitude| *magnitude > threshold).count();
        let top = above.iter().max().unwrap_or(threshold);
        let all_finite = *top < E::INFINITY.magnitude();
        Self { count, threshold: *threshold, ties: count - larger, all_finite }
    }

    /// Writes the chosen elements of `values`, in the order of their indices, and zeroes them, as well
    /// as all that are not finite.
    fn move_into(self, values: &mut [E], message: &mut [u8]) {
        let (indices, chosen) = message.split_at_mut(self.count * INDEX_BYTES);
        let mut pairs =
            indices.chunks_exact_mut(INDEX_BYTES).zip(chosen.chunks_exact_mut(size_of::<E>()));
        let mut ties = self.ties;
        for (index, value) in (0u32..).zip(values.iter_mut()) {
            let magnitude = value.magnitude();
            if magnitude < self.threshold {
                continue;
            }
            if magnitude == self.threshold {
                if ties == 0 {
                    continue;
                }
                ties -= 1;
            }
            let Some((index_bytes, value_bytes)) = pairs.next() else { break };
            index_bytes.copy_from_slice(&index.to_ne_bytes());
            value_bytes.copy_from_slice(bytemuck::bytes_of(value));
            *value = E::ZERO;
        }
        if !self.all_finite {
            values.iter_mut().filter(|value| !value.is_finite()).for_each(|v| *v = E::ZERO);
        }
    }
}

fn add_pairs<E: HookFloat>(message: &[u8], divisor: E, sums: &mut [E]) -> Result<(), CommError> {
    let count = message.len() / (INDEX_BYTES + size_of::<E>());
    let (indices, values) = message.split_at(count * INDEX_BYTES);
    let (indices, _) = indices.as_chunks::<INDEX_BYTES>();
    for (index, value) in indices.iter().zip(values.chunks_exact(size_of::<E>())) {
        let (index, len) = (u32::from_ne_bytes(*index), sums.len());
        let sum = sums.get_mut(index as usize).ok_or_else(|| CommError::Internal {
            detail: format!("top-k element {index} of a bucket of {len}"),
        })?;
        *sum += bytemuck::pod_read_unaligned::<E>(value) / divisor;
    }
    Ok(())
}

impl CommHook for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn reduce(
        &mut self,
        bucket: &HookBucket<'_>,
        gradients: &mut HostBuffer,
        group: &ProcessGroup,
    ) -> Result<(), ParallelError> {
        reduce_by_type(self, bucket, gradients, group)
    }

    fn state(&self) -> Result<State, TensorError> {
        Ok(self.residuals.state())
    }

    fn rescale(&mut self, factor: f64) {
        self.residuals.rescale(factor);
    }

    fn load_state(
        &mut self,
        states: &[State],
        rank: usize,
        world_size: usize,
    ) -> Result<(), TensorError> {
        Ok(self.residuals.load(states, rank, world_size)?.finish()?)
    }
}
