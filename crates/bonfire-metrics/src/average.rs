/// Figures of one class against all others.
///
/// A quotient of nothing is 0, as with scikit-learn's `zero_division=0`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassFigures {
    /// Which part of what was taken for this class is of it.
    pub precision: f64,
    /// Which part of this class was taken for it.
    pub recall: f64,
    /// The harmonic mean of both.
    pub f1: f64,
    /// How many samples are of this class.
    pub support: u64,
}

impl ClassFigures {
    /// Makes them of three counts: `tp / predicted`, `tp / support`, `2 tp / (predicted + support)`.
    pub(crate) fn new(true_positives: u64, predicted: u64, support: u64) -> Self {
        // As f64 before they are added or doubled, for the sake of counts that fill 64 bits.
        let [hits, guesses, targets] = [true_positives, predicted, support].map(|n| n as f64);
        Self {
            precision: ratio(hits, guesses),
            recall: ratio(hits, targets),
            f1: ratio(2.0 * hits, guesses + targets),
            support,
        }
    }
}

/// A quotient, 0 if there is nothing to divide by.
fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator == 0.0 { 0.0 } else { numerator / denominator }
}

/// How figures of classes become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Average {
    /// The mean over all classes, those without samples included.
    Macro,
    /// The figure of all decisions together. With one class a sample, precision, recall and F1 are all
    /// the accuracy.
    Micro,
    /// The mean over all classes, each weighted by its samples.
    Weighted,
}

/// The mean of `values` by `weights`, 0 if they add up to nothing.
pub(crate) fn weighted_mean(values: impl Iterator<Item = (f64, f64)>) -> f64 {
    let add = |(sum, total): (f64, f64), (value, weight)| (sum + value * weight, total + weight);
    let (sum, total) = values.fold((0.0, 0.0), add);
    ratio(sum, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quotient_of_nothing_is_zero() {
        let never_predicted = ClassFigures::new(0, 0, 3);
        assert_eq!((never_predicted.precision, never_predicted.recall), (0.0, 0.0));
        assert_eq!(ClassFigures::new(0, 0, 0).f1, 0.0);
        assert_eq!(weighted_mean([(0.5, 0.0)].into_iter()), 0.0);
    }

    #[test]
    fn counts_may_fill_64_bits() {
        let figures = ClassFigures::new(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!((figures.precision, figures.recall, figures.f1), (1.0, 1.0, 1.0));
    }
}
