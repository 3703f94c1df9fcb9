use crate::MetricError;

/// Scores of a batch and the classes that it should have.
///
/// Scores may be logits or probabilities; an f32 becomes an f64 without loss. A batch may be empty.
///
/// # Shapes
/// - scores: `[samples, classes]`, sample by sample;
/// - targets: `[samples]`, indices of classes.
#[derive(Debug, Clone, Copy)]
pub struct Scored<'a> {
    scores: &'a [f64],
    targets: &'a [usize],
    classes: usize,
}

impl<'a> Scored<'a> {
    /// Checks that scores and targets belong together.
    ///
    /// # Errors
    /// [`MetricError::NoClasses`], [`MetricError::NumScores`] and [`MetricError::Target`].
    pub fn new(
        scores: &'a [f64],
        targets: &'a [usize],
        classes: usize,
    ) -> Result<Self, MetricError> {
        if classes == 0 {
            return Err(MetricError::NoClasses);
        }
        let (samples, got) = (targets.len(), scores.len());
        let expected = samples as u128 * classes as u128;
        if got as u128 != expected {
            return Err(MetricError::NumScores { samples, classes, expected, got });
        }
        match targets.iter().enumerate().find(|(_, target)| **target >= classes) {
            Some((sample, &target)) => Err(MetricError::Target { sample, target, classes }),
            None => Ok(Self { scores, targets, classes }),
        }
    }

    /// How many classes have scores, at least 1.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// How many samples there are.
    pub fn num_samples(&self) -> usize {
        self.targets.len()
    }

    /// The scores of each sample and its target.
    pub fn samples(&self) -> impl Iterator<Item = (&'a [f64], usize)> + use<'a> {
        self.scores.chunks_exact(self.classes).zip(self.targets.iter().copied())
    }

    /// Checks that there are as many classes as figures have.
    pub(crate) fn expect_classes(&self, expected: usize) -> Result<(), MetricError> {
        match self.classes == expected {
            true => Ok(()),
            false => Err(MetricError::Classes { expected, got: self.classes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_checked_and_read_sample_by_sample() {
        let scored = Scored::new(&[1.0, 2.0, 3.0, 4.0], &[1, 0], 2).unwrap();
        let samples: Vec<_> = scored.samples().collect();
        assert_eq!(samples, [(&[1.0, 2.0][..], 1), (&[3.0, 4.0][..], 0)]);
        assert_eq!((scored.classes(), scored.num_samples()), (2, 2));
        assert_eq!(Scored::new(&[], &[], 7).unwrap().samples().count(), 0);
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        assert_eq!(Scored::new(&[], &[], 0).unwrap_err(), MetricError::NoClasses);
        let error = Scored::new(&[0.0; 5], &[0, 1], 3).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 targets of 3 classes need 6 scores, got 5; pass scores as [samples, classes], sample \
             by sample"
        );
        assert!(Scored::new(&[0.0; 4], &[0, 0], usize::MAX / 2 + 2).is_err(), "no wrap-around");
        let error = Scored::new(&[0.0; 4], &[1, 2], 2).unwrap_err();
        assert_eq!(error, MetricError::Target { sample: 1, target: 2, classes: 2 });
    }
}
