//! The training loop of one rank.

use super::control::{Control, Word};
use super::records::share_learner;
use crate::lifecycle::check_fingerprints;
use crate::{Context, TrainError, agreement};
use bonfire_nn::{has_sync_batchnorm, is_synchronized};
use bonfire_parallel::{DataParallel, DataParallelConfig};
use bonfire_tensor::checkpointing::follow_device;
use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::tensor::{Device, Tensor};
use burn::train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents, TrainingItem,
    ValidLoader,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What Burn's learner hands to a strategy.
pub(super) struct Parts<M: LearnerModel> {
    pub(super) components: TrainingComponents<M>,
    pub(super) learner: Learner<M>,
    pub(super) train: TrainLoader<M>,
    pub(super) valid: ValidLoader<M>,
}

type Input<M> = <M as TrainStep>::Input;

/// A training under way.
pub(super) struct Run<'a, M: LearnerModel> {
    context: &'a Context,
    /// Where the model trains; its strategy of gradient checkpointing is the model's.
    device: Device,
    control: Control,
    parallel: DataParallel<M>,
    learner: Learner<M>,
    components: TrainingComponents<M>,
    train: TrainLoader<M>,
    valid: ValidLoader<M>,
    /// Whether all ranks are known to have equally many batches.
    aligned: bool,
}

impl<'a, M: LearnerModel> Run<'a, M> {
    /// Checks that all ranks do the same, and makes them start from rank 0's learner.
    pub(super) fn start(
        context: &'a Context,
        config: &DataParallelConfig,
        device: &Device,
        parts: Parts<M>,
        starting_epoch: usize,
    ) -> Result<Self, TrainError> {
        let Parts { components, mut learner, train, valid } = parts;
        let group = context.group();
        let entries = [
            ("num_epochs", components.num_epochs),
            ("first epoch", starting_epoch),
            ("grads_accumulation", components.grad_accumulation.unwrap_or(1)),
            ("training items", train.num_items()),
        ];
        let entries = entries.map(|(key, value)| (key.to_string(), value.to_string()));
        agreement::check(group, "training", &entries)?;

        let (train, aligned) = share_of_data::<M>(context, &train, device)?;
        let sharded = context.sharded_loaders();
        let valid = valid.to_device(&device.clone().inner());
        if context.sharded_loaders() > sharded && context.world_size() > 1 {
            return Err(TrainError::ValidationSharded);
        }

        learner.fork(device);
        DataParallel::check_agreement(&learner.model(), group)?;
        share_learner(group, &mut learner, &components.event_store)?;
        let model = follow_device(learner.model(), device);
        if group.world_size() > 1 && has_sync_batchnorm(&model) && !is_synchronized(&model) {
            return Err(TrainError::NotConnected);
        }
        let parallel = DataParallel::new(model, group, config.clone())?;
        draw_own_noise(context.rank(), device);
        let control = Control(group.duplicate("learner")?);
        let device = device.clone();
        Ok(Self { context, device, control, parallel, learner, components, train, valid, aligned })
    }

    /// Trains until the last epoch, or until all ranks agree to stop.
    pub(super) fn train(
        mut self,
        starting_epoch: usize,
    ) -> Result<(M, SupervisedTrainingEventProcessor<M>), TrainError> {
        for epoch in starting_epoch..=self.components.num_epochs {
            self.context.set_epoch(epoch as u64 - 1);
            let interrupted = self.train_epoch(epoch)?;
            let next = match interrupted {
                true => Word::Interrupt,
                false if self.leads() => self.end_epoch(epoch)?,
                false => self.wait_for_rank_0()?,
            };
            if next == Word::Interrupt {
                self.control.share_cause(&self.components.interrupter)?;
            }
            if next != Word::Continue {
                break;
            }
        }
        self.parallel.synchronize_buffers()?;
        check_fingerprints(&self.control.0, self.parallel.fingerprint()?)?;
        Ok((self.learner.model(), self.components.event_processor))
    }

    fn leads(&self) -> bool {
        self.context.rank() == 0
    }

    /// Trains an epoch and returns whether some rank was asked to stop in it.
    fn train_epoch(&mut self, epoch: usize) -> Result<bool, TrainError> {
        let loader = self.train.clone();
        let total_items = loader.num_items();
        self.tell_of_training(LearnerEvent::StartSplit { epoch_number: epoch, total_items });
        let accumulation = self.components.grad_accumulation.unwrap_or(1);
        let mut batches = loader.iter();
        let mut coming = self.next_batch(&mut *batches)?;
        let (mut iteration, mut in_window, mut stopped) = (0, 0, false);
        while !stopped && let Some((batch, progress)) = coming {
            // The last micro-batch of a window has to be known before it runs backward.
            coming = self.next_batch(&mut *batches)?;
            iteration += 1;
            in_window += 1;
            let last = in_window == accumulation || coming.is_none();
            let output = self.micro_batch(batch, last)?;
            if last {
                stopped = self.optimizer_step()?;
                in_window = 0;
            }
            let rate = self.learner.lr_current();
            let item = TrainingItem::new(output, progress, Some(iteration), Some(rate));
            self.tell_of_training(LearnerEvent::ProcessedItem(item));
        }
        self.tell_of_training(LearnerEvent::EndSplit(epoch));
        Ok(stopped)
    }

    /// The next batch, as long as every rank has one.
    fn next_batch(
        &self,
        batches: &mut dyn DataLoaderIterator<Input<M>>,
    ) -> Result<Option<(Input<M>, Progress)>, TrainError> {
        let batch = batches
            .next()
            .transpose()
            .map_err(|error| TrainError::Loader { split: "training", reason: error.to_string() })?;
        if !self.aligned && !self.control.all(batch.is_some())? {
            return Ok(None);
        }
        Ok(batch.map(|batch| (batch, batches.progress())))
    }

    /// Runs the model's own step; the last of a window communicates.
    fn micro_batch(
        &mut self,
        batch: Input<M>,
        last: bool,
    ) -> Result<<M as TrainStep>::Output, TrainError> {
        let pass = |parallel: &mut DataParallel<M>| {
            parallel.backward_within(|replica| TrainStep::step(replica, batch).item)
        };
        if !last {
            return Ok(self.parallel.no_sync(pass)?);
        }
        if self.components.interrupter.should_stop() {
            self.parallel.vote(1.0);
        }
        Ok(pass(&mut self.parallel)?)
    }

    /// Lets Burn's optimizer take a step with the averaged gradients, and returns whether some rank
    /// was asked to stop.
    fn optimizer_step(&mut self) -> Result<bool, TrainError> {
        let (learner, device) = (&mut self.learner, &self.device);
        let report = self.parallel.step_with(|gradients| {
            learner.lr_step();
            learner.optimizer_step(gradients);
            follow_device(learner.model(), device)
        })?;
        Ok(report.votes > 0.0)
    }

    /// On rank 0: validates, saves, and decides how to go on.
    fn end_epoch(&mut self, epoch: usize) -> Result<Word, TrainError> {
        self.validate(epoch)?;
        let next = self.after_validation(epoch);
        self.control.tell(next)
    }

    /// On the other ranks: waits for what rank 0 decides.
    fn wait_for_rank_0(&self) -> Result<Word, TrainError> {
        loop {
            let word = self.control.hear()?;
            if word != Word::Validating {
                return Ok(word);
            }
        }
    }

    fn validate(&mut self, epoch: usize) -> Result<(), TrainError> {
        let loader = self.valid.clone();
        let total_items = loader.num_items();
        self.tell_of_validation(LearnerEvent::StartSplit { epoch_number: epoch, total_items });
        let model = self.learner.model().valid();
        let mut batches = loader.iter();
        let mut iteration = 0;
        while !self.components.interrupter.should_stop()
            && let Some(batch) = batches.next()
        {
            let batch = batch.map_err(|error| TrainError::Loader {
                split: "validation",
                reason: error.to_string(),
            })?;
            self.control.tell(Word::Validating)?;
            iteration += 1;
            let output = InferenceStep::step(&model, batch);
            let item = TrainingItem::new(output, batches.progress(), Some(iteration), None);
            self.tell_of_validation(LearnerEvent::ProcessedItem(item));
        }
        self.tell_of_validation(LearnerEvent::EndSplit(epoch));
        self.tell_of_training(LearnerEvent::EndEpoch(epoch));
        Ok(())
    }

    /// Saves a checkpoint and asks for early stopping, as Burn's strategies do.
    fn after_validation(&mut self, epoch: usize) -> Word {
        let TrainingComponents {
            checkpointer,
            early_stopping,
            interrupter,
            event_processor,
            event_store,
            ..
        } = &mut self.components;
        if checkpointer.is_some() || early_stopping.is_some() {
            interrupter.fail_on_error(event_processor.flush());
        }
        if interrupter.should_stop() {
            return Word::Interrupt;
        }
        if let Some(checkpointer) = checkpointer {
            checkpointer.checkpoint(&self.learner, epoch, event_store);
        }
        let early = early_stopping.as_mut().map(|early| early.should_stop(epoch, event_store));
        if early == Some(true) { Word::Finish } else { Word::Continue }
    }

    fn tell_of_training(&mut self, event: LearnerEvent<<M as TrainStep>::Output>) {
        if self.leads() {
            let TrainingComponents { interrupter, event_processor, .. } = &mut self.components;
            interrupter.fail_on_error(event_processor.process_train(event));
        }
    }

    fn tell_of_validation(&mut self, event: LearnerEvent<<M as InferenceStep>::Output>) {
        let TrainingComponents { interrupter, event_processor, .. } = &mut self.components;
        interrupter.fail_on_error(event_processor.process_valid(event));
    }
}

/// Moves the training loader to `device` and cuts this rank's share out of it, unless it does so
/// itself. Returns whether all ranks are known to have equally many batches.
fn share_of_data<M: LearnerModel>(
    context: &Context,
    loader: &TrainLoader<M>,
    device: &Device,
) -> Result<(TrainLoader<M>, bool), TrainError> {
    let (rank, ranks) = (context.rank(), context.world_size());
    let sharded = context.sharded_loaders();
    let loader = loader.to_device(device);
    if ranks == 1 || context.sharded_loaders() > sharded {
        return Ok((loader, true));
    }
    let samples = loader.num_items();
    let share = samples / ranks;
    if share == 0 {
        return Err(TrainError::TooFewSamples { split: "training", samples, ranks });
    }
    Ok((loader.slice(rank * share, (rank + 1) * share), false))
}

/// Gives ranks other than 0 random numbers of their own, such as for dropout: they follow from what
/// the program has seeded, which is the same everywhere, and from the rank.
fn draw_own_noise(rank: usize, device: &Device) {
    if rank == 0 {
        return;
    }
    let drawn = Tensor::<1>::random([2], burn::tensor::Distribution::Default, device).into_data();
    device.seed(xxh3_64_with_seed(drawn.as_bytes(), rank as u64));
}
