//! Gradients that travel in 8 bits, with a scale a block, and error feedback.
//!
//! Sums of codes are no codes, so a bucket cannot be reduced on its way as in a ring. Each rank is the
//! *server* of one chunk of whole blocks instead:
//!
//! 1. every rank adds its residual to its gradients, encodes them, keeps what the codes miss, and sends
//!    each chunk to its server (all-to-all);
//! 2. the server decodes the contributions, averages them in the order of the ranks, adds its server
//!    residual, encodes again, keeps what is missed, and sends the chunk to everybody (all-gather);
//! 3. every rank decodes all chunks, its own too, so that all have the same bits.
//!
//! Either phase sends (n - 1) / n of one byte an element and four a block.
//!
//! # Reference
//! Block-wise scales: Dettmers et al. 2022, arXiv:2110.02861, section 2. Error feedback on both sides:
//! Tang et al. 2019, arXiv:1905.05957.

mod block;
mod fp8;
mod int8;

use super::float::HookFloat;
use super::layout::grown;
use super::residual::Residuals;
use super::{CommHook, FloatHook, HookBucket, reduce_by_type};
use crate::ParallelError;
use block::{SCALE_BYTES, decode_average, decode_blocks, encode_blocks};
use bonfire_comm::{HostBuffer, Operation, ProcessGroup};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::State;
use std::marker::PhantomData;
use std::ops::Range;

pub(super) use fp8::Fp8;
pub(super) use int8::Int8;

/// Numbers in 8 bits.
pub(super) trait Codec: Send {
    const NAME: &'static str;
    /// Largest number; blocks are scaled to it.
    const MAX: f32;

    /// The code of the nearest number, of two the one with an even code; what lies beyond
    /// [`MAX`](Codec::MAX) becomes that.
    fn encode(value: f32) -> u8;

    /// The number of a code.
    fn decode(code: u8) -> f32;
}

/// Reduces buckets whose elements are encoded by `C`.
///
/// A block with an element that is not finite reaches every rank as NaN, and what was owed of it is
/// forgotten.
pub(super) struct Quantized<C> {
    block: usize,
    residuals: Residuals,
    outgoing: Vec<u8>,
    averaged: Vec<u8>,
    codec: PhantomData<C>,
}

impl<C: Codec> Quantized<C> {
    /// `block` elements share a scale; at least one.
    pub(super) fn new(block: usize) -> Self {
        let residuals = Residuals::new();
        Self { block, residuals, outgoing: vec![], averaged: vec![], codec: PhantomData }
    }
}

/// How a bucket is cut up between its servers: into as many blocks for each.
struct Chunks {
    len: usize,
    block: usize,
    blocks_each: usize,
}

impl Chunks {
    fn new(len: usize, block: usize, ranks: usize) -> Self {
        Self { len, block, blocks_each: len.div_ceil(block).div_ceil(ranks) }
    }

    /// The elements that `rank` averages.
    fn elements(&self, rank: usize) -> Range<usize> {
        let each = self.blocks_each * self.block;
        (rank * each).min(self.len)..((rank + 1) * each).min(self.len)
    }

    /// Bytes of an encoded block.
    fn block_bytes(&self) -> usize {
        SCALE_BYTES + self.block
    }

    /// Bytes of an encoded chunk; the last chunks may hold blocks behind the bucket's end.
    fn bytes(&self) -> usize {
        self.blocks_each * self.block_bytes()
    }
}

impl<C: Codec> FloatHook for Quantized<C> {
    fn reduce_floats<E: HookFloat>(
        &mut self,
        bucket: &HookBucket<'_>,
        gradients: &mut [E],
        group: &ProcessGroup,
    ) -> Result<(), ParallelError> {
        let (rank, ranks) = (group.rank(), group.world_size());
        let chunks = Chunks::new(gradients.len(), self.block, ranks);
        let (own, block_bytes) = (chunks.elements(rank), chunks.block_bytes());
        let (residual, server_residual) =
            self.residuals.of::<E>(bucket.index, bucket.segments, own.clone(), ranks)?;
        let outgoing = grown(&mut self.outgoing, ranks * chunks.bytes());
        let averaged = grown(&mut self.averaged, ranks * chunks.bytes());

        encode_blocks::<C, E>(gradients, residual, outgoing, block_bytes);
        group.run_in_place(Operation::AllToAll, outgoing)?;

        // The gradients of the own chunk are encoded: their place is free for the average.
        decode_average::<C, E>(outgoing, &mut gradients[own.clone()], block_bytes, ranks);
        let answer = &mut averaged[rank * chunks.bytes()..][..chunks.bytes()];
        encode_blocks::<C, E>(&mut gradients[own], server_residual, answer, block_bytes);
        group.run_in_place(Operation::AllGather, averaged)?;

        decode_blocks::<C, E>(averaged, gradients, block_bytes);
        Ok(())
    }
}

impl<C: Codec> CommHook for Quantized<C> {
    fn name(&self) -> &'static str {
        C::NAME
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
