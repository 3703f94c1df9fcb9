use crate::hooks::float::HookFloat;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use xxhash_rust::xxh3::xxh3_64;

/// Draws columns of factors that depend on seed, step, parameter and column alone.
pub(super) struct Generator {
    pub(super) seed: u64,
    pub(super) step: u64,
}

impl Generator {
    /// Draws the columns of a factor that are zero; each is `len` elements of `factor`.
    pub(super) fn fill_vanished<E: HookFloat>(&self, factor: &mut [E], len: usize, path: &str) {
        for (column, values) in factor.chunks_exact_mut(len).enumerate() {
            if values.iter().all(|value| *value == E::ZERO) {
                let mut random = self.stream(path, column as u64);
                values.iter_mut().for_each(|value| *value = E::from_f64(normal(&mut random)));
            }
        }
    }

    fn stream(&self, path: &str, column: u64) -> ChaCha8Rng {
        let mut key = [0; 32];
        let words = [self.seed, self.step, xxh3_64(path.as_bytes()), column];
        for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        ChaCha8Rng::from_seed(key)
    }
}

/// The sum of twelve uniform numbers less 6: mean 0, variance 1, and normal but for the far tails.
///
/// Exact integers, so that ranks on different machines draw the same bits, which a logarithm of their
/// C libraries would not promise.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let sum: u64 = (0..12).map(|_| u64::from(random.next_u32())).sum();
    sum as f64 / 2f64.powi(32) - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, step: u64, path: &str) -> Vec<f64> {
        let mut factor = vec![0.0; 8000];
        Generator { seed, step }.fill_vanished(&mut factor, 4000, path);
        factor
    }

    #[test]
    fn columns_look_normal_and_depend_on_everything_named() {
        let factor = drawn(1, 2, "a");
        assert_eq!(factor, drawn(1, 2, "a"));
        let moment = |power| factor.iter().map(|x| x.powi(power)).sum::<f64>() / 8000.0;
        // Five standard errors of 8000 normal numbers; the fourth moment of this sum is 2.9.
        let expected = [(1, 0.0, 0.06), (2, 1.0, 0.08), (3, 0.0, 0.22), (4, 2.9, 0.55)];
        for (power, value, tolerance) in expected {
            assert!((moment(power) - value).abs() < tolerance, "{power}: {}", moment(power));
        }
        for other in [drawn(2, 2, "a"), drawn(1, 3, "a"), drawn(1, 2, "b")] {
            assert!(factor.iter().zip(&other).filter(|(a, b)| a == b).count() < 5);
        }
        assert_ne!(factor[..4000], factor[4000..]);
    }

    #[test]
    fn only_columns_of_zeros_are_drawn() {
        let mut factor = vec![0.0f32, 0.0, 0.0, 5.0];
        Generator { seed: 0, step: 0 }.fill_vanished(&mut factor, 2, "a");
        assert!(factor[0] != 0.0 && factor[1] != 0.0);
        assert_eq!(factor[2..], [0.0, 5.0]);
    }
}
