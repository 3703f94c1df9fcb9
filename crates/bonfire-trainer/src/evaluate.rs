use crate::learnable::{Learnable, StepContext};
use crate::metrics::{LocalMetrics, Metrics, reduce};
use crate::{BatchSource, TrainError, Variant};
use bonfire_comm::ProcessGroup;
use bonfire_data::Shard;
use bonfire_tensor::parameters::{self, Role};

/// Computes a model's figures over all samples, each counted once, the samples shared by the ranks.
///
/// # Collective
/// All ranks of the group.
pub(crate) fn evaluate<M: Learnable>(
    model: &M,
    data: &dyn BatchSource<Batch = M::Batch>,
    group: &ProcessGroup,
    context: &StepContext,
) -> Result<Metrics, TrainError> {
    let model = model.valid();
    let shard = Shard { index: group.rank(), count: group.world_size() };
    let mut local = LocalMetrics::default();
    for batch in data.batches(shard, 0, 0)? {
        if let Some(batch) = batch?.data {
            local.add(&model.validation_step(batch, context));
        }
    }
    reduce(group, &local.take()?)
}

/// Computes the figures of a model with other values, under the name of the variant.
///
/// Running statistics lie in memory that all clones of a model share: they are lent to the variant and
/// put back.
///
/// # Collective
/// All ranks of the group.
pub(crate) fn evaluate_variant<M: Learnable>(
    model: &M,
    variant: Variant,
    data: &dyn BatchSource<Batch = M::Batch>,
    group: &ProcessGroup,
    context: &StepContext,
) -> Result<Metrics, TrainError> {
    let buffers = parameters::read(model, |spec| spec.role == Role::Buffer)?;
    let result = parameters::write(model.clone(), variant.values)
        .map_err(TrainError::from)
        .and_then(|other| evaluate(&other, data, group, context));
    drop(parameters::write(model.clone(), buffers)?);
    let mut metrics = result?;
    for value in &mut metrics.0 {
        value.name = format!("{}_{}", variant.name, value.name);
    }
    Ok(metrics)
}
