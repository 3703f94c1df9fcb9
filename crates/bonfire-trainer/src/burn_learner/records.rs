//! Rank 0's learner becomes everybody's.
//!
//! A learner shows its optimizer and scheduler to a checkpointer only, so that is what takes them.
//! Records identify parameters by Burn's `ParamId`, random in every process: the model's record
//! brings rank 0's identifiers along, by which the optimizer's state finds its parameters.

use crate::TrainError;
use bonfire_comm::ProcessGroup;
use burn::optim::OptimizerRecord;
use burn::optim::lr_scheduler::LrSchedulerRecord;
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Bytes;
use burn::train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy,
};
use burn::train::metric::store::EventStoreClient;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

type Packed = Result<Vec<u8>, RecordError>;

/// Gives every rank rank 0's parameters, optimizer state and scheduler state.
///
/// # Collective
/// All ranks of the group, with models that agree.
///
/// # Errors
/// [`TrainError::Record`]; failures of the group.
pub(super) fn share_learner<M: LearnerModel>(
    group: &ProcessGroup,
    learner: &mut Learner<M>,
    store: &EventStoreClient,
) -> Result<(), TrainError> {
    if group.world_size() == 1 {
        return Ok(());
    }
    let [model, optimizer, scheduler] = match group.rank() {
        0 => take_records(learner, store).map(Some),
        _ => [None, None, None],
    };
    if let Some(record) = share::<ModuleRecord>(group, "model", model)? {
        // Burn's learner panics when a record does not fit.
        let tried = learner.model().try_load_record(record.clone());
        drop(tried.map_err(|error| failed("model", &error))?);
        learner.load_model(record);
    }
    if let Some(record) = share::<OptimizerRecord>(group, "optimizer", optimizer)? {
        learner.load_optim(record);
    }
    if let Some(record) = share::<LrSchedulerRecord>(group, "learning rate scheduler", scheduler)? {
        learner.load_scheduler(record);
    }
    Ok(())
}

/// Broadcasts a record of rank 0, which gets nothing back.
fn share<R: Checkpoint>(
    group: &ProcessGroup,
    what: &'static str,
    packed: Option<Packed>,
) -> Result<Option<R>, TrainError> {
    let bytes = packed.transpose().map_err(|error| failed(what, &error))?;
    let bytes = group.broadcast_bytes(bytes.unwrap_or_default(), 0)?;
    if group.rank() == 0 {
        return Ok(None);
    }
    let record = R::checkpoint_from_bytes(Bytes::from_bytes_vec(bytes));
    record.map(Some).map_err(|error| failed(what, &error))
}

fn failed(what: &'static str, error: &RecordError) -> TrainError {
    TrainError::Record { what, reason: error.to_string() }
}

/// The learner's model, optimizer and scheduler as bytes.
fn take_records<M: LearnerModel>(learner: &Learner<M>, store: &EventStoreClient) -> [Packed; 3] {
    let (model, packed_model) = Catcher::new();
    let (optimizer, packed_optimizer) = Catcher::new();
    let (scheduler, packed_scheduler) = Catcher::new();
    let mut checkpointer = LearningCheckpointer::new(
        AsyncCheckpointer::new(model),
        AsyncCheckpointer::new(optimizer),
        AsyncCheckpointer::new(scheduler),
        Box::new(Always),
    );
    checkpointer.checkpoint(learner, 0, store);
    // Joins the threads that pack.
    drop(checkpointer);
    let lost = |_| Err(RecordError::Io("nothing was saved".into()));
    [packed_model, packed_optimizer, packed_scheduler]
        .map(|packed| packed.recv().unwrap_or_else(lost))
}

/// A checkpointer that keeps what it saves.
struct Catcher(SyncSender<Packed>);

impl Catcher {
    fn new() -> (Self, Receiver<Packed>) {
        let (sender, receiver) = sync_channel(1);
        (Self(sender), receiver)
    }
}

impl<R: Checkpoint> Checkpointer<R> for Catcher {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        let packed = record.checkpoint_into_bytes().map(|bytes| bytes.to_vec());
        self.0.send(packed).map_err(|error| CheckpointerError::Unknown(error.to_string()))
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, epoch: usize) -> Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown(format!("nothing is kept of epoch {epoch}")))
    }
}

/// Saves whenever it is asked.
struct Always;

impl CheckpointingStrategy for Always {
    fn checkpointing(
        &mut self,
        _epoch: usize,
        _collector: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}
