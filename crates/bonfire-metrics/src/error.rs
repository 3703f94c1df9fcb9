//! What can go wrong with figures.

/// Why a batch or another rank's part cannot be added to figures.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricError {
    /// Happens when samples have scores of no class.
    #[error("a batch of 0 classes has no figures; give every sample a score for each class")]
    NoClasses,
    /// Happens when the number of scores is not samples times classes.
    #[error(
        "{samples} targets of {classes} classes need {expected} scores, got {got}; pass scores as \
         [samples, classes], sample by sample"
    )]
    NumScores {
        /// Number of targets.
        samples: usize,
        /// Number of classes.
        classes: usize,
        /// Their product, which may be more than any slice holds.
        expected: u128,
        /// Number of scores.
        got: usize,
    },
    /// Happens when a target is none of the classes that have scores.
    #[error(
        "target {target} of sample {sample} is none of the {classes} classes that have scores; \
         number classes from 0 and give the model an output for each"
    )]
    Target {
        /// Index of the sample in its batch.
        sample: usize,
        /// Its target.
        target: usize,
        /// Number of classes.
        classes: usize,
    },
    /// Happens when figures of different numbers of classes meet.
    #[error(
        "figures of {expected} classes cannot take in those of {got}; use the same model and data \
         set for all batches and on every rank"
    )]
    Classes {
        /// Classes that the figures have.
        expected: usize,
        /// Classes that were to be added.
        got: usize,
    },
    /// Happens when accuracies of different k meet.
    #[error(
        "a top-{expected} accuracy cannot take in a top-{got} one; use the same k on every rank"
    )]
    K {
        /// The k that the accuracy has.
        expected: usize,
        /// The k that was to be added.
        got: usize,
    },
    /// Happens when ranks did not choose the same figures.
    #[error(
        "the figures [{expected}] cannot take in [{got}]; configure the same figures on every rank"
    )]
    Figures {
        /// Names of the own figures.
        expected: String,
        /// Names of those that were to be added.
        got: String,
    },
    /// Happens when there are more samples than a 64-bit number counts.
    #[error("{own} and {other} samples are more than can be counted; begin with new figures")]
    TooManySamples {
        /// Samples that are counted.
        own: u64,
        /// Samples that were to be added.
        other: u64,
    },
    /// Happens when bytes are not what `to_bytes` makes.
    #[error(
        "{num_bytes} bytes are no {what}: {reason}; exchange what to_bytes made, by the same version \
         of Bonfire on every rank"
    )]
    Bytes {
        /// How many bytes there are.
        num_bytes: usize,
        /// What was to be read.
        what: &'static str,
        /// What is wrong with them.
        reason: String,
    },
}

/// Adds numbers of samples.
pub(crate) fn add_samples(own: u64, other: u64) -> Result<u64, MetricError> {
    own.checked_add(other).ok_or(MetricError::TooManySamples { own, other })
}
