//! The order of an epoch.
//!
//! Checkpoints refer to positions in this order, so it must never change: seed expansion, bounded
//! integers and shuffle are written out here and pinned by golden values, instead of being taken
//! from a crate whose next version may do them differently. Only the ChaCha8 key stream, which is a
//! fixed specification, comes from outside.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::DataError;

/// Maps positions in an epoch to samples; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Permutation {
    /// Position `i` is sample `i`.
    Identity,
    /// Position `i` is sample `order[i]`.
    Shuffled(Arc<Vec<usize>>),
}

impl Permutation {
    /// Shuffles `0..len` as given by `seed` alone.
    pub(crate) fn shuffled(len: usize, seed: u64) -> Result<Self, DataError> {
        let mut order = Vec::new();
        order
            .try_reserve_exact(len)
            .map_err(|_| DataError::PermutationTooLarge { num_samples: len })?;
        order.extend(0..len);
        let mut random = ChaCha8Rng::from_seed(expand_seed(seed));
        // Fisher-Yates from the back: each of the len! orders is equally likely.
        for last in (1..len).rev() {
            let chosen = below(&mut random, last as u64 + 1) as usize;
            order.swap(last, chosen);
        }
        Ok(Self::Shuffled(Arc::new(order)))
    }

    /// Returns the sample at `position`, which must be within the length it was made for.
    pub(crate) fn sample_at(&self, position: usize) -> usize {
        match self {
            Self::Identity => position,
            Self::Shuffled(order) => order[position],
        }
    }
}

/// Spreads a seed over a key with SplitMix64, so that near seeds give unrelated keys.
///
/// # Reference
///
/// Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014).
fn expand_seed(seed: u64) -> [u8; 32] {
    let mut key = [0; 32];
    let mut state = seed;
    for word in key.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    key
}

/// Draws uniformly from `0..bound`, for a bound of at least 1.
///
/// The high half of `random * bound` falls on each value equally often once the draws whose low half
/// is below `2^64 mod bound` are rejected.
///
/// # Reference
///
/// Lemire: "Fast Random Integer Generation in an Interval" (ACM TOMACS 29, 2019), algorithm 5.
fn below(random: &mut impl RngCore, bound: u64) -> u64 {
    let mut product = u128::from(random.next_u64()) * u128::from(bound);
    if (product as u64) < bound {
        let rejected = bound.wrapping_neg() % bound;
        while (product as u64) < rejected {
            product = u128::from(random.next_u64()) * u128::from(bound);
        }
    }
    (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(len: usize, seed: u64) -> Vec<usize> {
        let permutation = Permutation::shuffled(len, seed).unwrap();
        (0..len).map(|position| permutation.sample_at(position)).collect()
    }

    /// Checked against an implementation in Python written from the papers. Checkpoints depend on
    /// these values: if this fails, the code is wrong, not the test.
    #[test]
    fn the_order_never_changes() {
        assert_eq!(order(10, 0), [5, 4, 3, 9, 6, 8, 0, 1, 2, 7]);
        assert_eq!(order(10, 1), [1, 5, 8, 3, 7, 2, 6, 0, 4, 9]);
        assert_eq!(order(16, 42), [11, 5, 10, 4, 15, 8, 14, 12, 6, 7, 2, 0, 9, 13, 1, 3]);
        assert_eq!(order(5, u64::MAX), [4, 2, 1, 3, 0]);
        let long = order(1797, 7);
        assert_eq!(long[..4], [1714, 1697, 290, 652]);
        assert_eq!(long[1793..], [120, 910, 1390, 719]);
    }

    /// With a bound just above 2^63 every second draw is rejected.
    #[test]
    fn bounded_draws_with_rejection_never_change() {
        let mut random = ChaCha8Rng::from_seed(expand_seed(3));
        let drawn = [0; 4].map(|_: u64| below(&mut random, (1 << 63) + 1));
        let expected = [
            0x2bda_7bd4_0bcd_5463,
            0x4ac5_8faa_2001_a4d2,
            0x03b9_076c_3c10_c446,
            0x05a4_e0eb_bdde_bcc2,
        ];
        assert_eq!(drawn, expected);
    }

    #[test]
    fn each_position_gets_each_sample_equally_often() {
        let (len, rounds) = (5, 20_000);
        let mut counts = vec![[0_u32; 5]; len];
        for seed in 0..rounds {
            for (position, sample) in order(len, seed).into_iter().enumerate() {
                counts[position][sample] += 1;
            }
        }
        // 4000 expected with a standard deviation of 57: seven of them.
        for count in counts.into_iter().flatten() {
            assert!(count.abs_diff(4000) < 400, "{count}");
        }
    }

    #[test]
    fn short_and_impossible_lengths() {
        assert!(order(0, 1).is_empty());
        assert_eq!(order(1, 1), [0]);
        let error = Permutation::shuffled(usize::MAX - 1, 0).unwrap_err();
        assert!(matches!(error, DataError::PermutationTooLarge { .. }), "{error}");
    }
}
