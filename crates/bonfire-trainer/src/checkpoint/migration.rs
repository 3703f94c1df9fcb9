//! Checkpoints of older formats.

use super::{Checkpoint, CheckpointError, Manifest};
use bonfire_tensor::state::Scalar;

/// Brings a checkpoint into the format of this program.
///
/// Format 1 had no steps that the schedule counts, no length of an epoch, and none that were saved
/// between an epoch and its validation: the first are the steps less those that were skipped, the
/// second follows from its configuration.
pub(super) fn migrate(mut checkpoint: Checkpoint) -> Result<Checkpoint, CheckpointError> {
    if checkpoint.manifest.format == 1 {
        let scalars = &mut checkpoint.state.scalars;
        let uint = |name: &str| match scalars.get(name) {
            Some(Scalar::Uint(value)) => *value,
            _ => 0,
        };
        let (step, skipped) = (uint("position.step"), uint("position.skipped"));
        scalars.insert("position.skipped".to_string(), Scalar::Uint(skipped));
        scalars
            .insert("position.scheduled".to_string(), Scalar::Uint(step.saturating_sub(skipped)));
        let steps_per_epoch = steps_per_epoch(&checkpoint.manifest);
        scalars.insert("position.steps_per_epoch".to_string(), Scalar::Uint(steps_per_epoch));
        scalars.insert("position.unvalidated".to_string(), Scalar::Bool(false));
        checkpoint.manifest.format = Manifest::FORMAT;
    }
    Ok(checkpoint)
}

/// Optimizer steps of an epoch, 0 where the configuration does not say.
fn steps_per_epoch(manifest: &Manifest) -> u64 {
    let number = |key: &str| manifest.configuration.get(key).and_then(|value| value.parse().ok());
    let batches: u64 = number("training.batches_per_rank").unwrap_or(0);
    batches.div_ceil(number("train.accumulate_grad_batches").unwrap_or(1).max(1))
}
