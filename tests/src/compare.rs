//! Numbers that must be close, or travel exactly.

use serde::{Deserialize, Serialize};

/// Numbers that pass through JSON with all their bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<u64>", into = "Vec<u64>")]
pub struct ExactFloats(pub Vec<f64>);

impl From<Vec<u64>> for ExactFloats {
    fn from(bits: Vec<u64>) -> Self {
        Self(bits.into_iter().map(f64::from_bits).collect())
    }
}

impl From<ExactFloats> for Vec<u64> {
    fn from(floats: ExactFloats) -> Self {
        floats.0.into_iter().map(f64::to_bits).collect()
    }
}

/// Asserts that every number differs from its counterpart by at most `tolerance` times the
/// counterpart's size.
///
/// # Panics
/// At the first number that does not, or for another count.
pub fn assert_close(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (got - expected).abs() <= tolerance * expected.abs(),
            "{what}[{index}] is {got:e}, expected {expected:e} within {tolerance:e} of its size"
        );
    }
}

/// Asserts that every number differs from its counterpart by at most `tolerance` times the largest
/// absolute value of all counterparts.
///
/// # Panics
/// At the first number that does not, or for another count.
pub fn assert_close_to_largest(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (got - expected).abs() <= tolerance * largest,
            "{what}[{index}] is {got:e}, expected {expected:e} within {tolerance:e} of {largest:e}"
        );
    }
}
