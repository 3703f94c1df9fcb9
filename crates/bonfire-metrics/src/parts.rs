use crate::bytes::{Reader, Writer};
use crate::figure::Wanted;
use crate::{Auroc, Average, ConfusionMatrix, Figure, MetricError, Scored, TopK};

/// The k of [`Figure::Top5`].
const K: usize = 5;

/// What is behind figures, and no more than they need.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parts {
    classes: usize,
    top5: Option<TopK>,
    /// All figures that are made of it share it.
    confusion: Option<ConfusionMatrix>,
    auroc: Option<Auroc>,
}

impl Parts {
    pub(crate) fn new(wanted: Wanted, classes: usize) -> Self {
        Self {
            classes,
            top5: wanted.has(Figure::Top5).then(|| TopK::new(K)),
            confusion: needs_confusion(wanted).then(|| ConfusionMatrix::new(classes)),
            auroc: wanted.has(Figure::Auroc).then(|| Auroc::new(classes)),
        }
    }

    pub(crate) fn update(&mut self, scored: &Scored<'_>) -> Result<(), MetricError> {
        // Here too, since top-5 would take any number of classes.
        scored.expect_classes(self.classes)?;
        self.top5.as_mut().map_or(Ok(()), |part| part.update(scored))?;
        self.confusion.as_mut().map_or(Ok(()), |part| part.update(scored))?;
        self.auroc.as_mut().map_or(Ok(()), |part| part.update(scored))
    }

    /// Adds the parts of `other`, which are those of the same figures.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        if other.classes != self.classes {
            return Err(MetricError::Classes { expected: self.classes, got: other.classes });
        }
        if let (Some(own), Some(other)) = (&mut self.top5, &other.top5) {
            own.merge(other)?;
        }
        if let (Some(own), Some(other)) = (&mut self.confusion, &other.confusion) {
            own.merge(other)?;
        }
        if let (Some(own), Some(other)) = (&mut self.auroc, &other.auroc) {
            own.merge(other)?;
        }
        Ok(())
    }

    pub(crate) fn confusion(&self) -> Option<&ConfusionMatrix> {
        self.confusion.as_ref()
    }

    pub(crate) fn value(&self, figure: Figure) -> Option<f64> {
        let confusion = self.confusion.as_ref().filter(|matrix| matrix.total() > 0);
        match figure {
            Figure::Top5 => self.top5.as_ref()?.accuracy(),
            Figure::Precision => Some(confusion?.precision(Average::Macro)),
            Figure::Recall => Some(confusion?.recall(Average::Macro)),
            Figure::F1 => Some(confusion?.f1(Average::Macro)),
            Figure::Auroc => self.auroc.as_ref()?.value(),
            Figure::ConfusionMatrix => None,
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.number(self.classes as u64);
        let sections = [
            self.top5.as_ref().map(TopK::to_bytes),
            self.confusion.as_ref().map(ConfusionMatrix::to_bytes),
            self.auroc.as_ref().map(Auroc::to_bytes),
        ];
        sections.iter().flatten().for_each(|section| writer.section(section));
    }

    /// Reads the parts that the figures need.
    pub(crate) fn read(wanted: Wanted, reader: &mut Reader<'_>) -> Result<Self, MetricError> {
        let classes = reader.size()?;
        let mut section = |needed: bool| needed.then(|| reader.section()).transpose();
        let top5 = section(wanted.has(Figure::Top5))?;
        let confusion = section(needs_confusion(wanted))?;
        let auroc = section(wanted.has(Figure::Auroc))?;
        let top5 = top5.map(TopK::from_bytes).transpose()?;
        let confusion = confusion.map(ConfusionMatrix::from_bytes).transpose()?;
        let auroc = auroc.map(Auroc::from_bytes).transpose()?;
        if top5.as_ref().is_some_and(|part| part.k() != K) {
            return Err(reader.error(format!("their top-k accuracy is not of {K} classes")));
        }
        let others = [confusion.as_ref().map(|m| m.classes()), auroc.as_ref().map(Auroc::classes)];
        if others.into_iter().flatten().any(|of| of != classes) {
            return Err(reader.error(format!("not all of their parts are of {classes} classes")));
        }
        Ok(Self { classes, top5, confusion, auroc })
    }
}

fn needs_confusion(wanted: Wanted) -> bool {
    use Figure::{ConfusionMatrix, F1, Precision, Recall};
    [ConfusionMatrix, Precision, Recall, F1].into_iter().any(|figure| wanted.has(figure))
}
