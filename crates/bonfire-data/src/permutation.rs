//! The order of an epoch.
//!
//! Checkpoints refer to positions in this order, so it must never change: the shuffle is written out
//! here and pinned by golden values, like the random numbers it takes.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::DataError;
use crate::random::{below, expand_seed};

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
