use crate::average::weighted_mean;
use crate::bytes::{Kind, Reader, Writer};
use crate::error::add_samples;
use crate::{Average, ClassFigures, MetricError, Scored};

const KIND: Kind = Kind { tag: *b"BMcm", name: "confusion matrix" };

/// Counts how often each class was taken for which.
///
/// The prediction is the first class with the highest score. A score that is not a number counts as the
/// highest, so that the first of these is predicted. Memory: 8 bytes for every pair of classes.
///
/// # Reference
/// `sklearn.metrics.confusion_matrix` and `precision_recall_fscore_support(zero_division=0)` with
/// `labels` = all classes, of `numpy.argmax`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfusionMatrix {
    classes: usize,
    /// `[target, prediction]`.
    counts: Vec<u64>,
    // INVARIANT: the sum of `counts`, so that no sum of some of them overflows.
    total: u64,
}

impl ConfusionMatrix {
    /// Begins to count, for a number of classes.
    ///
    /// # Panics
    /// If no memory could hold all pairs of classes.
    pub fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0; classes.saturating_mul(classes)], total: 0 }
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// [`MetricError::Classes`] if it is of another number of classes.
    pub fn update(&mut self, scored: &Scored<'_>) -> Result<(), MetricError> {
        scored.expect_classes(self.classes)?;
        self.total = add_samples(self.total, scored.num_samples() as u64)?;
        for (scores, target) in scored.samples() {
            self.counts[target * self.classes + argmax(scores)] += 1;
        }
        Ok(())
    }

    /// Adds the counts of `other`.
    ///
    /// # Errors
    /// [`MetricError::Classes`] if it is of another number of classes.
    pub fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        if other.classes != self.classes {
            return Err(MetricError::Classes { expected: self.classes, got: other.classes });
        }
        self.total = add_samples(self.total, other.total)?;
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, other)| *own += other);
        Ok(())
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// All counts, target by target: the predictions of class 0, then those of class 1 and so on.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// How often `target` was taken for `prediction`; never, if either is no class.
    pub fn count(&self, target: usize, prediction: usize) -> u64 {
        let is_pair = target < self.classes && prediction < self.classes;
        if is_pair { self.counts[target * self.classes + prediction] } else { 0 }
    }

    /// How many samples were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Which part of the samples was predicted right; `None` without samples.
    pub fn accuracy(&self) -> Option<f64> {
        let right: u64 = (0..self.classes).map(|class| self.count(class, class)).sum();
        (self.total > 0).then(|| right as f64 / self.total as f64)
    }

    /// The figures of every class.
    pub fn per_class(&self) -> Vec<ClassFigures> {
        let (mut support, mut predicted) = (vec![0; self.classes], vec![0; self.classes]);
        // A matrix without classes has no rows, but chunks must have a size.
        for (target, row) in self.counts.chunks_exact(self.classes.max(1)).enumerate() {
            support[target] = row.iter().sum();
            predicted.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
        }
        let figures =
            |class| ClassFigures::new(self.count(class, class), predicted[class], support[class]);
        (0..self.classes).map(figures).collect()
    }

    /// The precision of all classes; 0 without samples.
    pub fn precision(&self, average: Average) -> f64 {
        self.average(average, |class| class.precision)
    }

    /// The recall of all classes; 0 without samples. The macro average is also called balanced
    /// accuracy, for which others leave classes without samples out.
    pub fn recall(&self, average: Average) -> f64 {
        self.average(average, |class| class.recall)
    }

    /// The F1 of all classes; 0 without samples.
    pub fn f1(&self, average: Average) -> f64 {
        self.average(average, |class| class.f1)
    }

    fn average(&self, average: Average, figure: fn(&ClassFigures) -> f64) -> f64 {
        let weight: fn(&ClassFigures) -> f64 = match average {
            Average::Macro => |_| 1.0,
            // A sample that is wrong is one too many for a class and one too few for another, so that
            // both quotients, and their mean, are those of all samples.
            Average::Micro => return self.accuracy().unwrap_or(0.0),
            Average::Weighted => |class| class.support as f64,
        };
        weighted_mean(self.per_class().iter().map(|class| (figure(class), weight(class))))
    }

    /// Writes the counts for another rank.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(KIND);
        writer.number(self.classes as u64);
        writer.numbers(self.counts.iter().copied());
        writer.finish()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// [`MetricError::Bytes`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MetricError> {
        let mut reader = Reader::new(KIND, bytes)?;
        let classes = reader.size()?;
        let counts: Vec<u64> = reader.numbers(classes, classes)?.collect();
        let total = counts.iter().try_fold(0, |sum: u64, count| sum.checked_add(*count));
        let total = total.ok_or_else(|| reader.error("they count more than 2^64 samples"))?;
        reader.finish()?;
        Ok(Self { classes, counts, total })
    }
}

/// The first class with the highest score, or with the first score that is not a number.
fn argmax(scores: &[f64]) -> usize {
    let mut best = 0;
    for (class, score) in scores.iter().enumerate() {
        if score.is_nan() {
            return class;
        }
        if *score > scores[best] {
            best = class;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_scores_is_predicted() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(argmax(&[-0.0, 0.0]), 0);
        assert_eq!(argmax(&[1.0, f64::NAN, f64::INFINITY, f64::NAN]), 1);
        assert_eq!(argmax(&[f64::NEG_INFINITY; 2]), 0);
    }

    #[test]
    fn rows_are_targets_and_columns_predictions() {
        let mut matrix = ConfusionMatrix::new(2);
        assert_eq!(matrix.accuracy(), None);
        assert_eq!(matrix.precision(Average::Micro), 0.0);
        let scored = Scored::new(&[0.0, 1.0, 0.0, 1.0, 1.0, 0.0], &[0, 1, 0], 2).unwrap();
        matrix.update(&scored).unwrap();
        assert_eq!(matrix.counts(), [1, 1, 0, 1]);
        assert_eq!((matrix.count(0, 1), matrix.count(1, 0), matrix.count(0, 2)), (1, 0, 0));
        assert_eq!(matrix.accuracy(), Some(2.0 / 3.0));
        let class = ClassFigures { precision: 1.0, recall: 0.5, f1: 2.0 / 3.0, support: 2 };
        assert_eq!(matrix.per_class()[0], class);
        assert_eq!(matrix.recall(Average::Macro), 0.75);
    }

    #[test]
    fn other_classes_and_counts_beyond_64_bits_are_refused() {
        let mut matrix = ConfusionMatrix::new(1);
        let other = Scored::new(&[0.0, 1.0], &[0], 2).unwrap();
        let refused = MetricError::Classes { expected: 1, got: 2 };
        assert_eq!(matrix.update(&other), Err(refused.clone()));
        assert_eq!(matrix.merge(&ConfusionMatrix::new(2)), Err(refused));
        assert!(ConfusionMatrix::new(0).per_class().is_empty());

        let mut writer = Writer::new(KIND);
        writer.numbers([1, u64::MAX].into_iter());
        let full = ConfusionMatrix::from_bytes(&writer.finish()).unwrap();
        matrix.merge(&full).unwrap();
        let overflow = MetricError::TooManySamples { own: u64::MAX, other: u64::MAX };
        assert_eq!(matrix.merge(&full), Err(overflow));
        let one = Scored::new(&[0.0], &[0], 1).unwrap();
        assert!(matrix.update(&one).is_err());
        assert_eq!(matrix, full, "what is refused changes nothing");

        let mut writer = Writer::new(KIND);
        writer.numbers([2, u64::MAX, 0, 0, 1].into_iter());
        assert!(ConfusionMatrix::from_bytes(&writer.finish()).is_err());
    }
}
