//! The ways of exchanging gradients, and the bytes that each is to send.

use super::RANKS;

/// A way of exchanging gradients.
pub(super) struct Way {
    pub(super) name: &'static str,
    /// Changes of the recipe.
    pub(super) settings: &'static [&'static str],
    /// Whether it has to reach the accuracy of whole gradients.
    pub(super) held_to_accuracy: bool,
    /// First steps, whose gradients travel as they are.
    plain_steps: f64,
    /// Bytes of a later step, as a part of what a ring sends in f32: the mean over a run of so many
    /// steps.
    pub(super) bytes: fn(steps: f64) -> f64,
}

/// Whole gradients, with which the others are compared, first.
pub(super) const WAYS: [Way; 9] = [
    Way {
        name: "whole",
        settings: &["distributed.compression=none"],
        held_to_accuracy: true,
        plain_steps: 0.0,
        bytes: |_| 1.0,
    },
    compressed("fp16", &["distributed.compression=fp16"], |_| 0.5),
    compressed("bf16", &["distributed.compression=bf16"], |_| 0.5),
    compressed("int8", &["distributed.compression=int8"], eight_bits),
    compressed("fp8", &["distributed.compression=fp8"], eight_bits),
    compressed("topk, 1 %", &["distributed.compression=topk"], top_k),
    Way {
        name: "powerSGD, rank 1",
        settings: &["distributed.compression=powersgd", "distributed.start_powerSGD_iter=2"],
        held_to_accuracy: true,
        plain_steps: 2.0,
        bytes: power_sgd,
    },
    Way {
        name: "local SGD, period 8",
        settings: &["distributed.local_sgd.period=8"],
        held_to_accuracy: true,
        plain_steps: 0.0,
        bytes: local_sgd,
    },
    Way {
        name: "local SGD, period 8, outer momentum",
        settings: &["distributed.local_sgd.period=8", "distributed.local_sgd.outer_lr=0.7"],
        // A run has too few averages for a momentum of 0.9 to come to rest.
        held_to_accuracy: false,
        plain_steps: 0.0,
        bytes: local_sgd,
    },
];

/// A hook that acts from the second step on: in the first, the ranks find out how to lay out buckets.
const fn compressed(
    name: &'static str,
    settings: &'static [&'static str],
    bytes: fn(steps: f64) -> f64,
) -> Way {
    Way { name, settings, held_to_accuracy: true, plain_steps: 1.0, bytes }
}

/// Rows and columns of the weights of the recipe's LeNet, as a gradient of each is factored.
const MATRICES: [(usize, usize); 4] = [(16, 9), (32, 16 * 9), (32 * 7 * 7, 128), (128, 10)];
const BIASES: usize = 16 + 32 + 128 + 10;

fn num_parameters() -> usize {
    MATRICES.iter().map(|(rows, columns)| rows * columns).sum::<usize>() + BIASES
}

/// Every block of 64 elements has a scale of 4 bytes.
fn eight_bits(_: f64) -> f64 {
    (1.0 + 4.0 / 64.0) / 4.0
}

/// A hundredth of the elements, with a position of 4 bytes each. Every rank sends its own to all
/// others, where a ring sends 2 (n - 1) / n of the elements.
fn top_k(_: f64) -> f64 {
    0.01 * 8.0 / 4.0 * RANKS as f64 / 2.0
}

/// A row and a column of each matrix, since all of these are large enough, and the biases whole.
fn power_sgd(_: f64) -> f64 {
    let factors: usize = MATRICES.iter().map(|(rows, columns)| rows + columns).sum();
    (factors + BIASES) as f64 / num_parameters() as f64
}

/// All parameters after every eighth step.
fn local_sgd(steps: f64) -> f64 {
    (steps / 8.0).floor() / steps
}

impl Way {
    /// Bytes of a step that goes this way, as a part of those of a ring in f32, in a run that sent
    /// `bytes` in `steps` steps.
    pub(super) fn bytes_of_a_step(&self, bytes: f64, steps: f64) -> f64 {
        let ring = 4.0 * num_parameters() as f64 * 2.0 * (RANKS as f64 - 1.0) / RANKS as f64;
        (bytes - self.plain_steps * ring) / ((steps - self.plain_steps) * ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_steps_do_not_count() {
        let ring = 4.0 * 206_922.0;
        let [whole, half, ..] = &WAYS;
        assert_eq!(whole.bytes_of_a_step(10.0 * ring, 10.0), 1.0);
        assert_eq!(half.bytes_of_a_step(ring + 9.0 * ring / 2.0, 10.0), 0.5);
        assert_eq!(local_sgd(63.0), 7.0 / 63.0);
    }

    #[test]
    fn factors_of_rank_one_are_a_hundredth_of_this_model() {
        // Element counts of the four pairs of factors, and of the biases.
        let elements = 25 + 176 + 1696 + 138 + 186;
        assert_eq!(power_sgd(1.0), f64::from(elements) / 206_922.0);
    }
}
