use crate::bytes::{Kind, Reader, Writer};
use crate::error::add_samples;
use crate::{MetricError, Scored};
use std::cmp::Ordering;

const KIND: Kind = Kind { tag: *b"BMtk", name: "top-k accuracy" };

/// Counts how often the target is among the classes with the `k` highest scores.
///
/// A target is right if fewer than `k` classes come before it. Of two equal scores the *later* class
/// comes before the earlier one, and a score that is not a number before all others. So a tie with
/// top-1 may be decided otherwise than by [`ConfusionMatrix`](crate::ConfusionMatrix), which predicts the
/// first class. With `k` classes or fewer every target is right; with a `k` of 0 none is.
///
/// # Reference
/// `sklearn.metrics.top_k_accuracy_score`: a stable sort of the scores of all classes, reversed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopK {
    k: usize,
    correct: u64,
    // INVARIANT: at least `correct`.
    count: u64,
}

impl TopK {
    /// Begins to count, for a number of classes that a target may be among.
    pub fn new(k: usize) -> Self {
        Self { k, correct: 0, count: 0 }
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// [`MetricError::TooManySamples`] if 64 bits cannot count them.
    pub fn update(&mut self, scored: &Scored<'_>) -> Result<(), MetricError> {
        self.count = add_samples(self.count, scored.num_samples() as u64)?;
        let right = scored.samples().filter(|(scores, target)| rank(scores, *target) < self.k);
        self.correct += right.count() as u64;
        Ok(())
    }

    /// Adds the counts of `other`.
    ///
    /// # Errors
    /// [`MetricError::K`] if it is of another k.
    pub fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        if other.k != self.k {
            return Err(MetricError::K { expected: self.k, got: other.k });
        }
        self.count = add_samples(self.count, other.count)?;
        self.correct += other.correct;
        Ok(())
    }

    /// The number of classes that a target may be among.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How many targets were right.
    pub fn correct(&self) -> u64 {
        self.correct
    }

    /// How many samples were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Which part of the targets was right; `None` without samples.
    pub fn accuracy(&self) -> Option<f64> {
        (self.count > 0).then(|| self.correct as f64 / self.count as f64)
    }

    /// Writes the counts for another rank.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(KIND);
        writer.numbers([self.k as u64, self.correct, self.count].into_iter());
        writer.finish()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// [`MetricError::Bytes`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MetricError> {
        let mut reader = Reader::new(KIND, bytes)?;
        let (k, correct, count) = (reader.size()?, reader.number()?, reader.number()?);
        if correct > count {
            return Err(reader.error(format!("{correct} of {count} targets cannot be right")));
        }
        reader.finish()?;
        Ok(Self { k, correct, count })
    }
}

/// How many classes come before the target.
fn rank(scores: &[f64], target: usize) -> usize {
    let own = scores[target];
    let order = |class: usize, score: f64| {
        let by_score = score.partial_cmp(&own).unwrap_or(Ordering::Equal);
        score.is_nan().cmp(&own.is_nan()).then(by_score).then(class.cmp(&target))
    };
    scores.iter().enumerate().filter(|(class, score)| order(*class, **score).is_gt()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_classes_and_what_is_not_a_number_come_first() {
        let ranks = |scores: &[f64]| {
            (0..scores.len()).map(|target| rank(scores, target)).collect::<Vec<_>>()
        };
        assert_eq!(ranks(&[0.5, 2.0, 0.5, 1.0]), [3, 0, 2, 1]);
        assert_eq!(ranks(&[0.0, -0.0, 0.0]), [2, 1, 0]);
        let nan = f64::NAN;
        // numpy.argsort([nan, 1, nan, 0], kind="stable")[::-1] is [2, 0, 1, 3].
        assert_eq!(ranks(&[nan, 1.0, nan, 0.0]), [1, 2, 0, 3]);
        assert_eq!(ranks(&[f64::INFINITY, nan]), [1, 0]);
    }

    #[test]
    fn few_classes_are_always_right_and_no_class_never() {
        let scored = Scored::new(&[0.0, 1.0, 1.0, 0.0], &[0, 1], 2).unwrap();
        for (k, correct) in [(0, 0), (1, 0), (2, 2), (5, 2)] {
            let mut top = TopK::new(k);
            assert_eq!(top.accuracy(), None);
            top.update(&scored).unwrap();
            assert_eq!((top.k(), top.correct(), top.count()), (k, correct, 2));
            assert_eq!(top.accuracy(), Some(correct as f64 / 2.0));
        }
    }

    #[test]
    fn another_k_and_impossible_counts_are_refused() {
        let error = TopK::new(1).merge(&TopK::new(5)).unwrap_err();
        assert_eq!(error, MetricError::K { expected: 1, got: 5 });
        let impossible = TopK { k: 1, correct: 3, count: 2 };
        assert!(TopK::from_bytes(&impossible.to_bytes()).is_err());
        let mut full = TopK { k: 1, correct: u64::MAX, count: u64::MAX };
        assert!(full.merge(&full.clone()).is_err());
    }
}
