//! What is saved of a run that fails.

use crate::TrainError;
use crate::checkpoint::{Checkpoint, Job, Keep, MODEL_PREFIX};
use crate::learnable::Learnable;
use crate::run::Run;
use crate::settled::Settled;
use bonfire_parallel::ParallelError;

impl<M: Learnable> Run<'_, M> {
    /// Saves the state after the last finished step before a failure, or a panic, ends the run. The
    /// other ranks may not answer any more, so rank 0 saves what it has if that is all there is.
    pub(crate) fn rescue(&mut self, error: Option<&TrainError>) {
        let Some(folder) = self.config.checkpoint_folder.clone() else { return };
        if let Some(begun) = self.begun.take()
            && error.is_none_or(leaves_sound_values)
        {
            match self.resolve(begun) {
                Ok((end, _)) => self.settle_at(end.position, end.buffers),
                Err(reason) => tracing::debug!("the last step's outcome is lost: {reason}"),
            }
        }
        let Some(Settled { position, buffers }) = self.settled.take() else { return };
        let nothing_new = self.saved == Some(position) || position.step == self.first_step;
        if self.control.rank() > 0 || nothing_new || !error.is_none_or(leaves_sound_values) {
            return;
        }
        self.position = position;
        let mark = buffers.mark;
        let buffers = buffers.read(self.parallel.specs());
        let state = buffers
            .map_err(TrainError::from)
            .and_then(|buffers| Ok(self.state_of_this_rank()?.map(|state| (state, buffers))));
        let state = match state {
            Ok(Some((mut state, buffers))) => {
                // Those of the model may have seen a part of the next step.
                state.insert_under(MODEL_PREFIX, buffers);
                state
            }
            Ok(None) => {
                tracing::warn!(
                    "the run fails after step {}: its state lies on all ranks, so the checkpoint \
                     before has to do",
                    position.step
                );
                return;
            }
            Err(reason) => {
                tracing::error!("the failing run was not saved: {reason}");
                return;
            }
        };
        // Looked at behind the reading, which has waited for what the device had to do.
        if self.control.is_lost_before(mark) {
            tracing::warn!(
                "the run fails in the midst of what its devices do after step {}: the checkpoint \
                 before has to do",
                position.step
            );
            return;
        }
        let checkpoint = Checkpoint { manifest: self.manifest(), state };
        let keep = Keep::last(self.config.checkpoint.keep_last);
        self.writer.start(Job { folder, checkpoint, keep });
        let newest = self.writer.wait();
        // A failure to write was told by the writer.
        if let (Some(place), None) = (newest, self.writer.failure()) {
            tracing::warn!(
                "the run fails; its state after step {} is saved: --resume {}",
                position.step,
                place.display()
            );
        }
    }
}

/// Whether the values of a model may be trusted after an error.
fn leaves_sound_values(error: &TrainError) -> bool {
    if let TrainError::Anomaly(anomaly) = error {
        return anomaly.leaves_sound_values();
    }
    !matches!(
        error,
        TrainError::LossNotFinite { .. }
            | TrainError::ParametersDiffer { .. }
            | TrainError::Checkpoint(_)
            | TrainError::Parallel(
                ParallelError::GradientNotFinite { .. } | ParallelError::ReplicasDiffer { .. }
            )
    )
}
