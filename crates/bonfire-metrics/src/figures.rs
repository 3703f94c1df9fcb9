use crate::bytes::{Kind, Reader, Writer};
use crate::figure::Wanted;
use crate::parts::Parts;
use crate::{ConfusionMatrix, Figure, MetricError, Scored};

const KIND: Kind = Kind { tag: *b"BMfi", name: "figures" };

/// Figures of a run, with no more behind them than they need.
///
/// The number of classes is that of the first batch, or of the first rank that had one: figures without
/// samples merge with any.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    wanted: Wanted,
    /// `None` until there was a batch.
    parts: Option<Parts>,
}

impl Figures {
    /// Begins with figures, in whatever order they are named.
    pub fn new(figures: &[Figure]) -> Self {
        Self { wanted: Wanted::new(figures), parts: None }
    }

    /// Whether no figure is asked for.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// [`MetricError::Classes`] if it is of other classes than the ones before.
    pub fn update(&mut self, scored: &Scored<'_>) -> Result<(), MetricError> {
        let (wanted, classes) = (self.wanted, scored.classes());
        self.parts.get_or_insert_with(|| Parts::new(wanted, classes)).update(scored)
    }

    /// Adds the samples of `other`.
    ///
    /// # Errors
    /// [`MetricError::Figures`] if it is of other figures, [`MetricError::Classes`] if of other classes.
    pub fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        if other.wanted != self.wanted {
            let (expected, got) = (self.wanted.names(), other.wanted.names());
            return Err(MetricError::Figures { expected, got });
        }
        match (&mut self.parts, &other.parts) {
            (Some(own), Some(other)) => own.merge(other),
            (Some(_), None) => Ok(()),
            (None, other) => {
                self.parts = other.clone();
                Ok(())
            }
        }
    }

    /// Adds the samples behind what [`to_bytes`](Self::to_bytes) wrote on some rank.
    ///
    /// # Errors
    /// As [`merge`](Self::merge) and [`from_bytes`](Self::from_bytes).
    pub fn merge_bytes(&mut self, bytes: &[u8]) -> Result<(), MetricError> {
        self.merge(&Self::from_bytes(bytes)?)
    }

    /// The figures that are numbers, by name, in the order of [`Figure::ALL`].
    ///
    /// There are none without samples, and no `auroc` where
    /// [`Auroc::value`](crate::Auroc::value) is `None`.
    pub fn values(&self) -> Vec<(&'static str, f64)> {
        let Some(parts) = &self.parts else { return Vec::new() };
        let value = |figure: Figure| Some((figure.name(), parts.value(figure)?));
        self.wanted.iter().filter_map(value).collect()
    }

    /// The confusion matrix, if [`Figure::ConfusionMatrix`] is asked for and there was a batch.
    pub fn confusion_matrix(&self) -> Option<&ConfusionMatrix> {
        let parts = self.parts.as_ref().filter(|_| self.wanted.has(Figure::ConfusionMatrix));
        parts?.confusion()
    }

    /// Writes everything for another rank.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(KIND);
        writer.number(self.wanted.bits());
        if let Some(parts) = &self.parts {
            parts.write(&mut writer);
        }
        writer.finish()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// [`MetricError::Bytes`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MetricError> {
        let mut reader = Reader::new(KIND, bytes)?;
        let Some(wanted) = Wanted::from_bits(reader.number()?) else {
            return Err(reader.error("they are of figures that are not known here"));
        };
        let parts = match reader.is_at_end() {
            true => None,
            false => Some(Parts::read(wanted, &mut reader)?),
        };
        reader.finish()?;
        Ok(Self { wanted, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(classes: usize) -> Figures {
        let mut figures = Figures::new(&Figure::ALL);
        let scores: Vec<f64> = (0..2 * classes).map(|index| index as f64).collect();
        figures.update(&Scored::new(&scores, &[0, classes - 1], classes).unwrap()).unwrap();
        figures
    }

    #[test]
    fn values_have_names_and_an_order() {
        let figures = scored(2);
        let expected = [
            ("top5_accuracy", 1.0),
            ("precision", 0.25),
            ("recall", 0.5),
            ("f1", 1.0 / 3.0),
            ("auroc", 0.5),
        ];
        assert_eq!(figures.values(), expected);
        assert_eq!(figures.confusion_matrix().unwrap().counts(), [0, 1, 0, 1]);
        let names = Figure::ALL.map(Figure::name);
        assert_eq!(names[..5], expected.map(|(name, _)| name));
    }

    #[test]
    fn only_what_is_asked_for_is_there() {
        let batch = [0.0, 1.0];
        let batch = Scored::new(&batch, &[1], 2).unwrap();
        let of = |wanted: &[Figure]| {
            let mut figures = Figures::new(wanted);
            figures.update(&batch).unwrap();
            let names: Vec<_> = figures.values().into_iter().map(|(name, _)| name).collect();
            (names, figures.confusion_matrix().is_some())
        };
        assert_eq!(
            of(&[Figure::F1, Figure::Top5, Figure::F1]),
            (vec!["top5_accuracy", "f1"], false)
        );
        assert_eq!(of(&[Figure::ConfusionMatrix]), (vec![], true));
        assert_eq!(of(&[Figure::Auroc]), (vec![], false), "all samples are of one class");
        assert_eq!(of(&[]), (vec![], false));
        assert!(Figures::new(&[]).is_empty());
        assert!(!Figures::new(&[Figure::ConfusionMatrix]).is_empty());
    }

    #[test]
    fn a_rank_without_samples_merges_with_any() {
        let empty = Figures::new(&Figure::ALL);
        assert_eq!((empty.values(), empty.confusion_matrix()), (vec![], None));
        for order in [[&empty, &scored(3)], [&scored(3), &empty]] {
            let mut total = Figures::new(&Figure::ALL);
            order.iter().for_each(|part| total.merge_bytes(&part.to_bytes()).unwrap());
            assert_eq!(total, scored(3));
        }
        let mut none = empty.clone();
        none.update(&Scored::new(&[], &[], 3).unwrap()).unwrap();
        assert_eq!(none.values(), [], "an empty batch tells the classes only");
        assert!(none.merge(&scored(4)).is_err());
    }

    #[test]
    fn other_figures_and_other_classes_are_refused() {
        let mut figures = scored(3);
        let error = figures.merge(&scored(2)).unwrap_err();
        assert_eq!(error, MetricError::Classes { expected: 3, got: 2 });
        let error = Figures::new(&[Figure::F1, Figure::Top5]).merge(&figures).unwrap_err();
        assert!(error.to_string().starts_with(
            "the figures [top5_accuracy, f1] cannot take in [top5_accuracy, precision, recall, f1, "
        ));
        let mut top5 = Figures::new(&[Figure::Top5]);
        top5.update(&Scored::new(&[0.0], &[0], 1).unwrap()).unwrap();
        let error = top5.update(&Scored::new(&[0.0; 2], &[0], 2).unwrap()).unwrap_err();
        assert_eq!(error, MetricError::Classes { expected: 1, got: 2 });
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let mut bytes = scored(3).to_bytes();
        let classes = 4 + 1 + 8;
        assert_eq!(bytes[classes], 3);
        bytes[classes] = 4;
        let error = Figures::from_bytes(&bytes).unwrap_err().to_string();
        assert!(error.contains("not all of their parts are of 4 classes"), "{error}");
        bytes[5] = 0xff;
        let error = Figures::from_bytes(&bytes).unwrap_err().to_string();
        assert!(error.contains("figures that are not known here"), "{error}");
    }
}
