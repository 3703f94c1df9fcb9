//! Random numbers that never change.
//!
//! Checkpoints refer to an order of samples, and a resumed run must augment them as before, so seed
//! expansion, bounded integers and distributions are written out here and pinned by golden values,
//! instead of being taken from a crate whose next version may do them differently. Only the ChaCha8
//! key stream, which is a fixed specification, comes from outside.

use std::f64::consts::TAU;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::SampleContext;

/// A generator for one transform of one sample, or for one batch.
#[derive(Debug, Clone)]
pub struct RandomSource {
    key_stream: ChaCha8Rng,
}

impl RandomSource {
    /// Makes the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self { key_stream: ChaCha8Rng::from_seed(expand_seed(seed)) }
    }

    /// Makes the generator of the transform at `position` of a list, for one sample.
    ///
    /// Each position has a stream of its own, so that how much one transform draws has no influence
    /// on the next.
    pub fn for_sample(context: &SampleContext, position: usize) -> Self {
        let mut source = Self::new(context.random_seed());
        source.key_stream.set_stream(position as u64);
        source
    }

    /// Draws an integer uniformly from `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        below(&mut self.key_stream, (bound as u64).max(1)) as usize
    }

    /// Draws a number uniformly from `[low, high)`, with 53 random bits; `low` when they are equal.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns true with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Draws from the normal distribution of mean 0 and variance 1.
    ///
    /// # Reference
    ///
    /// Box, Muller: "A Note on the Generation of Random Normal Deviates" (1958); the sine is dropped.
    pub fn normal(&mut self) -> f64 {
        // In (0, 1], where the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }

    /// Draws from the Beta distribution of two equal parameters above 0.
    ///
    /// It is `x / (x + y)` of two Gamma variates, whose logarithms are drawn, since for small
    /// parameters the variates themselves underflow.
    pub fn symmetric_beta(&mut self, alpha: f64) -> f64 {
        let (x, y) = (self.log_gamma_variate(alpha), self.log_gamma_variate(alpha));
        1.0 / (1.0 + (y - x).exp())
    }

    /// Draws the logarithm of a Gamma variate of a shape above 0.
    ///
    /// # Reference
    ///
    /// Marsaglia, Tsang: "A Simple Method for Generating Gamma Variables" (ACM TOMS 26, 2000), with
    /// the note in its section 6 for shapes below 1.
    fn log_gamma_variate(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = (1.0 - self.unit()).ln() / shape;
            return self.log_gamma_variate(shape + 1.0) + boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            let u = 1.0 - self.unit();
            if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return (d * v).ln();
            }
        }
    }

    /// Draws from `[0, 1)`.
    fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.key_stream.next_u64() >> 11) as f64 * STEP
    }
}

/// Spreads a seed over a key with SplitMix64, so that near seeds give unrelated keys.
///
/// # Reference
///
/// Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014).
pub(crate) fn expand_seed(seed: u64) -> [u8; 32] {
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
pub(crate) fn below(random: &mut impl RngCore, bound: u64) -> u64 {
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

    const DRAWS: usize = 20_000;

    /// Mean and variance of draws.
    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / DRAWS as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        (mean, variance / DRAWS as f64)
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
    fn each_position_of_a_list_has_a_stream_of_its_own() {
        let context = SampleContext { seed: 1, epoch: 2, index: 3 };
        let first = |position| RandomSource::for_sample(&context, position).uniform(0.0, 1.0);
        assert_eq!(first(0), RandomSource::new(context.random_seed()).uniform(0.0, 1.0));
        assert_ne!(first(0), first(1));
        assert_eq!(first(1), first(1));
    }

    #[test]
    fn uniform_and_normal_draws_have_their_moments() {
        let mut random = RandomSource::new(7);
        // Six standard deviations of the mean of so many draws: 6 * sqrt(1 / 12 / 20000) = 0.012.
        let (mean, variance) = moments(|| random.uniform(2.0, 3.0));
        assert!((mean - 2.5).abs() < 0.013 && (variance - 1.0 / 12.0).abs() < 0.004);
        let (mean, variance) = moments(|| random.normal());
        assert!((mean).abs() < 0.043 && (variance - 1.0).abs() < 0.06, "{mean} {variance}");
    }

    /// The mean is 1/2 and the variance `1 / (4 (2 alpha + 1))`.
    #[test]
    fn beta_draws_have_their_moments() {
        for alpha in [0.05, 0.2, 1.0, 4.0] {
            let mut random = RandomSource::new(11);
            let (mean, variance) = moments(|| random.symmetric_beta(alpha));
            let expected = 0.25 / (2.0 * alpha + 1.0);
            let six_deviations = 6.0 * (expected / DRAWS as f64).sqrt();
            assert!((mean - 0.5).abs() < six_deviations, "alpha {alpha}: mean {mean}");
            assert!((variance / expected - 1.0).abs() < 0.06, "alpha {alpha}: {variance}");
        }
    }

    #[test]
    fn beta_draws_of_tiny_parameters_are_numbers() {
        let mut random = RandomSource::new(5);
        for _ in 0..1000 {
            let drawn = random.symmetric_beta(1e-4);
            assert!((0.0..=1.0).contains(&drawn), "{drawn}");
        }
    }
}
