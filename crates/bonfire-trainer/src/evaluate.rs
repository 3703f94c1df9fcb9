use crate::learnable::{Learnable, StepContext};
use crate::metrics::{LocalMetrics, Metrics, reduce};
use crate::{BatchSource, TrainError};
use bonfire_comm::ProcessGroup;
use bonfire_data::Shard;

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
