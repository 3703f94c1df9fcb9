/// A figure that a validation can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// How often the target is among the 5 highest scores: always, with 5 classes or fewer.
    Top5,
    /// The precision, a mean over all classes.
    Precision,
    /// The recall, a mean over all classes.
    Recall,
    /// F1, a mean over all classes.
    F1,
    /// The area under the ROC curve.
    Auroc,
    /// How often each class was taken for which.
    ConfusionMatrix,
}

impl Figure {
    /// All figures, in the order in which values come.
    pub const ALL: [Self; 6] =
        [Self::Top5, Self::Precision, Self::Recall, Self::F1, Self::Auroc, Self::ConfusionMatrix];

    /// Its name among the figures of a run.
    pub fn name(self) -> &'static str {
        match self {
            Self::Top5 => "top5_accuracy",
            Self::Precision => "precision",
            Self::Recall => "recall",
            Self::F1 => "f1",
            Self::Auroc => "auroc",
            Self::ConfusionMatrix => "confusion_matrix",
        }
    }
}

/// A set of figures, in whatever order they were named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted(u64);

impl Wanted {
    pub(crate) fn new(figures: &[Figure]) -> Self {
        Self(figures.iter().fold(0, |bits, figure| bits | bit(*figure)))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The set of some bits, unless there are bits of no figure.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        (bits & !Self::new(&Figure::ALL).0 == 0).then_some(Self(bits))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn has(self, figure: Figure) -> bool {
        self.0 & bit(figure) != 0
    }

    /// Its figures in the order of [`Figure::ALL`].
    pub(crate) fn iter(self) -> impl Iterator<Item = Figure> {
        Figure::ALL.into_iter().filter(move |figure| self.has(*figure))
    }

    pub(crate) fn names(self) -> String {
        self.iter().map(Figure::name).collect::<Vec<_>>().join(", ")
    }
}

/// Travels between ranks: a figure keeps its place in the enum, and new ones come last.
fn bit(figure: Figure) -> u64 {
    1 << figure as u64
}
