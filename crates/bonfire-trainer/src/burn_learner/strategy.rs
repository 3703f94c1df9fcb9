//! The door into Burn's learner.

use super::quiet::{NoCheckpointer, NoLogger, NoRenderer};
use super::run::{Parts, Run};
use crate::{Context, TrainError};
use bonfire_parallel::{DataParallelConfig, GradientReduction};
use burn::tensor::Device;
use burn::train::{
    EventProcessorTraining, Learner, LearnerModel, LearningResult, SupervisedLearningStrategy,
    SupervisedTraining, SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents,
    TrainingStrategy, ValidLoader,
};
use std::sync::Arc;

/// Trains a learner of Burn on all ranks of a run; see [the module](self::super) for what that
/// means.
///
/// # Collective
/// All ranks launch the same training. The process ends with exit code 1 when a rank fails.
#[derive(Debug, Clone)]
pub struct DataParallelStrategy {
    context: Context,
    config: DataParallelConfig,
    device: Option<Device>,
}

impl DataParallelStrategy {
    /// Makes a strategy for the rank that [`init`](crate::init) has made of this thread.
    ///
    /// # Errors
    /// [`TrainError::NotInitialized`].
    pub fn new() -> Result<Self, TrainError> {
        Ok(Self::of(Context::expect_current()?))
    }

    /// Makes a strategy for a context, whichever thread it is from.
    pub fn of(context: Context) -> Self {
        Self { context, config: DataParallelConfig::default(), device: None }
    }

    /// Sets how gradients are gathered and buffers kept equal. The reduction stays
    /// [`MeanOverRanks`](GradientReduction::MeanOverRanks), since a batch of Burn has no weight.
    #[must_use]
    pub fn with_config(mut self, config: DataParallelConfig) -> Self {
        self.config = DataParallelConfig { reduction: GradientReduction::MeanOverRanks, ..config };
        self
    }

    /// Sets this rank's device. Default: where the model lies.
    #[must_use]
    pub fn with_device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    fn run<M: LearnerModel>(
        &self,
        parts: Parts<M>,
        starting_epoch: usize,
    ) -> Result<(M, SupervisedTrainingEventProcessor<M>), TrainError> {
        let of_model = || parts.learner.model().devices().into_iter().next();
        let device = self.device.clone().or_else(of_model).unwrap_or_default();
        let device = if device.is_autodiff() { device } else { device.autodiff() };
        let run = Run::start(&self.context, &self.config, &device, parts, starting_epoch)?;
        run.train(starting_epoch)
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for DataParallelStrategy {
    fn train(
        &self,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        training_components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        if self.context.rank() == 0 {
            // Burn's own frame of events, summary and renderer.
            return Leader(self).train(
                learner,
                dataloader_train,
                dataloader_valid,
                training_components,
            );
        }
        let interrupter = training_components.interrupter.clone();
        let starting_epoch = training_components.checkpoint.unwrap_or(0) + 1;
        let (model, processor) = self.fit(
            training_components,
            learner,
            dataloader_train,
            dataloader_valid,
            starting_epoch,
        );
        LearningResult {
            model: model.valid(),
            renderer: processor.renderer(),
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
        }
    }

    fn fit(
        &self,
        training_components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let parts = Parts {
            components: training_components,
            learner,
            train: dataloader_train,
            valid: dataloader_valid,
        };
        self.run(parts, starting_epoch).unwrap_or_else(|error| self.context.exit(&error))
    }
}

/// The strategy on rank 0, with the trait's own `train`.
struct Leader<'a>(&'a DataParallelStrategy);

impl<M: LearnerModel> SupervisedLearningStrategy<M> for Leader<'_> {
    fn fit(
        &self,
        training_components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        self.0.fit(training_components, learner, dataloader_train, dataloader_valid, starting_epoch)
    }
}

/// Adds data parallelism to Burn's `SupervisedTraining`.
pub trait DataParallelTraining {
    /// Trains with `strategy`, and on ranks other than 0 without renderer, log files and
    /// checkpoints.
    ///
    /// Make it the last line of the builder: what follows it would give those ranks their renderer
    /// or checkpointers back.
    #[must_use]
    fn with_data_parallel(self, strategy: DataParallelStrategy) -> Self;
}

impl<M: LearnerModel> DataParallelTraining for SupervisedTraining<M> {
    fn with_data_parallel(self, strategy: DataParallelStrategy) -> Self {
        let leads = strategy.context.rank() == 0;
        let training = self.with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy)));
        if leads {
            return training;
        }
        training
            .renderer(Box::new(NoRenderer))
            .with_application_logger(None)
            .with_metric_logger(NoLogger)
            .with_custom_checkpointers(NoCheckpointer, NoCheckpointer, NoCheckpointer)
    }
}
