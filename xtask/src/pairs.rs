//! Two loops measured in turns.

use crate::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Deserialize;

/// Seconds of the turns of both loops, pair by pair.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Pairs {
    base: Vec<f64>,
    other: Vec<f64>,
}

/// Samples that the interval is read from.
const RESAMPLED: usize = 2000;

impl Pairs {
    pub(crate) fn extend(&mut self, more: Self) {
        self.base.extend(more.base);
        self.other.extend(more.other);
    }

    pub(crate) fn len(&self) -> usize {
        self.base.len().min(self.other.len())
    }

    /// How fast the second loop is, as a multiple of the first.
    pub(crate) fn speed(&self) -> Result<f64> {
        self.speed_of(0..self.len())
    }

    /// Between which speeds the true one lies with 95 %.
    pub(crate) fn interval(&self) -> Result<(f64, f64)> {
        let len = self.len();
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut any = || (random.next_u64() % len.max(1) as u64) as usize;
        let mut resample = || self.speed_of((0..len).map(|_| any()));
        let mut speeds = (0..RESAMPLED).map(|_| resample()).collect::<Result<Vec<_>>>()?;
        speeds.sort_by(f64::total_cmp);
        Ok((speeds[RESAMPLED / 40], speeds[RESAMPLED - RESAMPLED / 40 - 1]))
    }

    fn speed_of(&self, pairs: impl Iterator<Item = usize>) -> Result<f64> {
        let (base, other) = pairs.fold((0.0, 0.0), |(base, other), pair| {
            (base + self.base[pair], other + self.other[pair])
        });
        if other <= 0.0 {
            return Err("nothing was measured: measure for longer".into());
        }
        Ok(base / other)
    }
}

#[cfg(test)]
mod tests {
    use super::Pairs;

    #[test]
    fn a_loop_that_takes_twice_as_long_has_half_the_speed() {
        let base: Vec<f64> = (0..100).map(|k| 1.0 + f64::from(k % 7) * 0.1).collect();
        let pairs = Pairs { other: base.iter().map(|seconds| seconds * 2.0).collect(), base };
        assert!((pairs.speed().unwrap() - 0.5).abs() < 1e-12);
        let (low, high) = pairs.interval().unwrap();
        assert!((low - 0.5).abs() < 1e-12 && (high - 0.5).abs() < 1e-12);
        assert!(Pairs::default().speed().is_err());
    }
}
