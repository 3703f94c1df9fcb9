use crate::learnable::{ClassScores, Learnable, StepContext};
use crate::metrics::{LocalMetrics, MetricValue, Metrics, reduce};
use crate::{BatchSource, TrainError, Variant};
use bonfire_comm::ProcessGroup;
use bonfire_data::Shard;
use bonfire_metrics::{ConfusionMatrix, Figure, Figures, Scored};
use bonfire_tensor::parameters::{self, Role};
use burn::tensor::DType;

/// What a validation found, over all ranks.
pub(crate) struct Evaluation {
    pub(crate) metrics: Metrics,
    /// If it was asked for.
    pub(crate) confusion_matrix: Option<ConfusionMatrix>,
}

/// What a model is evaluated on, and how.
#[derive(Clone, Copy)]
pub(crate) struct Examination<'a, B: Send + 'static> {
    pub(crate) data: &'a dyn BatchSource<Batch = B>,
    pub(crate) group: &'a ProcessGroup,
    pub(crate) context: &'a StepContext,
    /// Figures of classes, beside those that the model reports.
    pub(crate) figures: &'a [Figure],
    /// Batches of each rank.
    pub(crate) limit: usize,
}

impl<B: Send + 'static> Examination<'_, B> {
    /// Computes a model's figures over all samples, each counted once, the samples shared by the ranks.
    ///
    /// # Collective
    /// All ranks of the group.
    pub(crate) fn evaluate<M: Learnable<Batch = B>>(
        &self,
        model: &M,
    ) -> Result<Evaluation, TrainError> {
        let model = model.valid();
        let shard = Shard { index: self.group.rank(), count: self.group.world_size() };
        let mut local = LocalMetrics::default();
        let mut figures = Figures::new(self.figures);
        // All ranks have equally many batches.
        for batch in self.data.batches(shard, 0, 0)?.take(self.limit) {
            let Some(batch) = batch?.data else { continue };
            let output = model.validation_step(batch, self.context);
            local.add(&output);
            if !figures.is_empty() {
                let scores = output.scores.ok_or(TrainError::NoScores)?;
                add_scores(&mut figures, scores)?;
            }
        }
        let mut metrics = reduce(self.group, &local.take()?)?;
        let figures = merge(self.group, &figures)?;
        let value = |(name, value): (&str, f64)| MetricValue {
            name: name.to_string(),
            sum: value,
            count: 1.0,
        };
        metrics.extend(Metrics(figures.values().into_iter().map(value).collect()));
        Ok(Evaluation { metrics, confusion_matrix: figures.confusion_matrix().cloned() })
    }

    /// Computes the figures of a model with other values, under the name of the variant.
    ///
    /// Running statistics lie in memory that all clones of a model share: they are lent to the variant
    /// and put back.
    ///
    /// # Collective
    /// All ranks of the group.
    pub(crate) fn evaluate_variant<M: Learnable<Batch = B>>(
        &self,
        model: &M,
        variant: Variant,
    ) -> Result<Metrics, TrainError> {
        let buffers = parameters::read(model, |spec| spec.role == Role::Buffer)?;
        let result = parameters::write(model.clone(), variant.values)
            .map_err(TrainError::from)
            .and_then(|other| self.evaluate(&other));
        drop(parameters::write(model.clone(), buffers)?);
        let mut metrics = result?.metrics;
        for value in &mut metrics.0 {
            value.name = format!("{}_{}", variant.name, value.name);
        }
        Ok(metrics)
    }
}

/// Reads the scores of a batch from the device.
fn add_scores(figures: &mut Figures, batch: ClassScores) -> Result<(), TrainError> {
    let ClassScores { scores, targets } = batch;
    let [_, classes] = scores.dims();
    let scores = scores.cast(DType::F64).try_into_vec_as::<f64>().map_err(unreadable)?;
    let targets = targets.try_into_vec_as::<i64>().map_err(unreadable)?;
    // What is no class is refused with the number that it has.
    let targets: Vec<usize> =
        targets.into_iter().map(|class| usize::try_from(class).unwrap_or(usize::MAX)).collect();
    Ok(figures.update(&Scored::new(&scores, &targets, classes)?)?)
}

/// Adds up the figures of all ranks, in their order.
///
/// # Collective
/// All ranks of the group, if any figure was asked for.
fn merge(group: &ProcessGroup, own: &Figures) -> Result<Figures, TrainError> {
    if own.is_empty() || group.world_size() == 1 {
        return Ok(own.clone());
    }
    let mut parts = group.all_gather_bytes(&own.to_bytes())?.into_iter();
    let first = parts.next().unwrap_or_else(|| own.to_bytes());
    let mut all = Figures::from_bytes(&first)?;
    parts.try_for_each(|part| all.merge_bytes(&part))?;
    Ok(all)
}

fn unreadable(error: impl std::fmt::Debug) -> TrainError {
    TrainError::ReadMetric { reason: format!("{error:?}") }
}
