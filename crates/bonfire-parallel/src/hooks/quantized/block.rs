//! Elements as encoded blocks: an f32 scale and a code for each element.
//!
//! Element = code * scale, with the scale such that the largest magnitude of the block has the largest
//! code. Codes behind the last element are zero. Two scales are special: 0 for a block whose elements
//! are too small for a normal f32 scale, and NaN for a block with an element that is not finite.

use super::Codec;
use crate::hooks::float::HookFloat;
use crate::hooks::vector::{add, divide, largest};

/// Bytes of a block's scale, which comes before its codes.
pub(super) const SCALE_BYTES: usize = 4;

/// Adds `residual` to `values`, encodes the sum into the blocks of `message`, and leaves in `residual`
/// what the codes miss of it. Blocks of `message` that lie behind all values are zeroed.
pub(super) fn encode_blocks<C: Codec, E: HookFloat>(
    values: &mut [E],
    residual: &mut [E],
    message: &mut [u8],
    block_bytes: usize,
) {
    let block = block_bytes - SCALE_BYTES;
    let blocks = values.len().div_ceil(block);
    let (used, unused) = message.split_at_mut(blocks * block_bytes);
    let blocks = values.chunks_mut(block).zip(residual.chunks_mut(block));
    for ((values, residual), message) in blocks.zip(used.chunks_exact_mut(block_bytes)) {
        add(values, residual);
        encode::<C, E>(values, residual, message);
    }
    unused.fill(0);
}

fn encode<C: Codec, E: HookFloat>(values: &[E], residual: &mut [E], message: &mut [u8]) {
    let (scale_bytes, codes) = message.split_at_mut(SCALE_BYTES);
    let scale = scale::<C>(largest(values).to_f32());
    scale_bytes.copy_from_slice(&scale.to_ne_bytes());
    if scale.is_nan() {
        // A residual that is not finite would poison every later step.
        residual.fill(E::ZERO);
        codes.fill(0);
    } else if scale == 0.0 {
        residual.copy_from_slice(values);
        codes.fill(0);
    } else {
        let scale = E::from_f32(scale);
        let inverse = E::ONE / scale;
        let (codes, behind) = codes.split_at_mut(values.len());
        for (code, value) in codes.iter_mut().zip(values) {
            *code = C::encode((*value * inverse).to_f32());
        }
        for ((residual, value), code) in residual.iter_mut().zip(values).zip(&*codes) {
            *residual = *value - E::from_f32(C::decode(*code)) * scale;
        }
        behind.fill(0);
    }
}

/// The scale of a block with this largest magnitude.
fn scale<C: Codec>(largest: f32) -> f32 {
    // Rounding up must not take a decoded element beyond f32.
    if largest.is_nan() || largest > f32::MAX / 2.0 {
        return f32::NAN;
    }
    let scale = largest / C::MAX;
    // The inverse of a smaller number may be infinite.
    if scale < f32::MIN_POSITIVE { 0.0 } else { scale }
}

/// Decodes the blocks of `message` into `values`.
pub(super) fn decode_blocks<C: Codec, E: HookFloat>(
    message: &[u8],
    values: &mut [E],
    block_bytes: usize,
) {
    let blocks = values.chunks_mut(block_bytes - SCALE_BYTES);
    for (values, message) in blocks.zip(message.chunks_exact(block_bytes)) {
        let (scale, codes) = scale_and_codes::<E>(message);
        for (value, code) in values.iter_mut().zip(codes) {
            *value = E::from_f32(C::decode(*code)) * scale;
        }
    }
}

/// Sets `values` to the mean of what the ranks have sent, added up in the order of the ranks.
/// `messages` has a part for each rank.
pub(super) fn decode_average<C: Codec, E: HookFloat>(
    messages: &[u8],
    values: &mut [E],
    block_bytes: usize,
    ranks: usize,
) {
    let part_bytes = messages.len() / ranks;
    let divisor = E::from_f64(ranks as f64);
    for (index, values) in values.chunks_mut(block_bytes - SCALE_BYTES).enumerate() {
        values.fill(E::ZERO);
        for rank in 0..ranks {
            let message = &messages[rank * part_bytes + index * block_bytes..][..block_bytes];
            let (scale, codes) = scale_and_codes::<E>(message);
            for (value, code) in values.iter_mut().zip(codes) {
                *value += E::from_f32(C::decode(*code)) * scale;
            }
        }
        divide(values, divisor);
    }
}

fn scale_and_codes<E: HookFloat>(message: &[u8]) -> (E, &[u8]) {
    match message.split_first_chunk::<SCALE_BYTES>() {
        Some((scale, codes)) => (E::from_f32(f32::from_ne_bytes(*scale)), codes),
        // INVARIANT: every block has a scale.
        None => (E::NAN, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::quantized::{Fp8, Int8};

    fn round_trip<C: Codec, E: HookFloat>(mut values: Vec<E>, block: usize) -> (Vec<E>, Vec<E>) {
        let mut residual = vec![E::ZERO; values.len()];
        let mut message = vec![7; (values.len().div_ceil(block) + 1) * (SCALE_BYTES + block)];
        encode_blocks::<C, E>(&mut values, &mut residual, &mut message, SCALE_BYTES + block);
        assert!(message[message.len() - SCALE_BYTES - block..].iter().all(|byte| *byte == 0));
        let mut decoded = vec![E::NAN; values.len()];
        decode_blocks::<C, E>(&message, &mut decoded, SCALE_BYTES + block);
        (decoded, residual)
    }

    #[test]
    fn decoded_and_residual_make_up_the_value() {
        let values: Vec<f64> = (0..150).map(|k| f64::from(k * 37 % 101 - 50) / 7.0).collect();
        for block in [1, 7, 64, 500] {
            let (decoded, residual) = round_trip::<Int8, f64>(values.clone(), block);
            let (decoded8, residual8) = round_trip::<Fp8, f64>(values.clone(), block);
            for k in 0..values.len() {
                assert!((decoded[k] + residual[k] - values[k]).abs() < 1e-14);
                assert!((decoded8[k] + residual8[k] - values[k]).abs() < 1e-14);
                assert!(residual[k].abs() <= 50.0 / 7.0 / 127.0 / 2.0 * 1.0001);
                assert!(residual8[k].abs() <= (decoded8[k].abs() / 16.0).max(1e-2));
            }
        }
    }

    #[test]
    fn tiny_and_huge_blocks_stay_finite() {
        for tiny in [0.0, 1e-45, 1e-38, -3e-37] {
            let (decoded, residual) = round_trip::<Int8, f32>(vec![tiny; 3], 2);
            assert!(decoded.iter().zip(residual).all(|(d, r)| d + r == tiny), "{tiny}");
        }
        let (decoded, residual) = round_trip::<Fp8, f32>(vec![f32::MAX, 1.0, 2.0, -4.0], 2);
        assert!(decoded[..2].iter().all(|value| value.is_nan()));
        assert_eq!((&decoded[2..], &residual[..]), (&[2.0, -4.0][..], &[0.0; 4][..]));
    }
}
