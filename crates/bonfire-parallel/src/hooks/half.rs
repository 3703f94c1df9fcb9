//! Gradients that travel in 16 bits.

use super::float::HookFloat;
use super::layout::grown;
use super::{CommHook, FloatHook, HookBucket, reduce_by_type};
use crate::ParallelError;
use bonfire_amp::HalfType;
use bonfire_comm::{Element, HostBuffer, ProcessGroup, ReduceOp};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::State;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A 16-bit type that gradients travel in; conversions round to the nearest, ties to even.
pub(super) trait Half: Element {
    const NAME: &'static str;
    const TYPE: HalfType;

    fn from_f32_slice(values: &[f32], halves: &mut [Self]);
    fn from_f64_slice(values: &[f64], halves: &mut [Self]);
    fn to_f32_slice(halves: &[Self], values: &mut [f32]);
    fn to_f64_slice(halves: &[Self], values: &mut [f64]);
}

impl Half for f16 {
    const NAME: &'static str = "fp16";
    const TYPE: HalfType = HalfType::Fp16;

    fn from_f32_slice(values: &[f32], halves: &mut [Self]) {
        halves.convert_from_f32_slice(values);
    }
    fn from_f64_slice(values: &[f64], halves: &mut [Self]) {
        halves.convert_from_f64_slice(values);
    }
    fn to_f32_slice(halves: &[Self], values: &mut [f32]) {
        halves.convert_to_f32_slice(values);
    }
    fn to_f64_slice(halves: &[Self], values: &mut [f64]) {
        halves.convert_to_f64_slice(values);
    }
}

impl Half for bf16 {
    const NAME: &'static str = "bf16";
    const TYPE: HalfType = HalfType::Bf16;

    fn from_f32_slice(values: &[f32], halves: &mut [Self]) {
        for (half, value) in halves.iter_mut().zip(values) {
            *half = rounded(*value);
        }
    }
    fn from_f64_slice(values: &[f64], halves: &mut [Self]) {
        halves.convert_from_f64_slice(values);
    }
    fn to_f32_slice(halves: &[Self], values: &mut [f32]) {
        halves.convert_to_f32_slice(values);
    }
    fn to_f64_slice(halves: &[Self], values: &mut [f64]) {
        halves.convert_to_f64_slice(values);
    }
}

/// `bf16::from_f32` without a branch, which would keep the loop around it from becoming vector code.
#[inline(always)]
fn rounded(value: f32) -> bf16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // The payload of a NaN may lie in the half that is cut off.
    let quiet = (bits >> 16) | 0x40;
    bf16::from_bits(if value.is_nan() { quiet } else { nearest } as u16)
}

/// Divides by the world size, casts, sums over ranks and casts back.
///
/// The division comes first: under a loss scale the sum over ranks would leave the range of `f16`
/// where the mean does not. An element that leaves it all the same is infinite on every rank.
///
/// # Reference
/// `torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook` and
/// `bf16_compress_hook`.
#[derive(Default)]
pub(super) struct HalfCompress<H> {
    halves: Vec<H>,
}

impl<H: Half + Default> FloatHook for HalfCompress<H> {
    fn reduce_floats<E: HookFloat>(
        &mut self,
        _: &HookBucket<'_>,
        gradients: &mut [E],
        group: &ProcessGroup,
    ) -> Result<(), ParallelError> {
        let ranks = E::from_f64(group.world_size() as f64);
        gradients.iter_mut().for_each(|value| *value = *value / ranks);
        let halves = grown(&mut self.halves, gradients.len());
        E::narrow(gradients, halves);
        group.all_reduce(halves, ReduceOp::Sum)?;
        E::widen(halves, gradients);
        Ok(())
    }
}

impl<H: Half + Default> CommHook for HalfCompress<H> {
    fn name(&self) -> &'static str {
        H::NAME
    }

    fn reduce(
        &mut self,
        bucket: &HookBucket<'_>,
        gradients: &mut HostBuffer,
        group: &ProcessGroup,
    ) -> Result<(), ParallelError> {
        reduce_by_type(self, bucket, gradients, group)
    }

    fn half(&self) -> Option<HalfType> {
        Some(H::TYPE)
    }

    fn state(&self) -> Result<State, TensorError> {
        Ok(State::default())
    }

    fn load_state(&mut self, states: &[State], _: usize, _: usize) -> Result<(), TensorError> {
        Ok(states.iter().cloned().try_for_each(State::finish)?)
    }
}
