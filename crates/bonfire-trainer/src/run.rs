use crate::best::Best;
use crate::checkpoint::Writer;
use crate::config::Schedule;
use crate::learnable::{Learnable, StepContext};
use crate::metrics::{LocalMetrics, Metrics, PendingMetrics, gather_figures, reduce};
use crate::position::Position;
use crate::precision::Precision;
use crate::profile::Profiling;
use crate::settled::{Begun, Settled};
use crate::timing::StepTimes;
use crate::utilization::UsageMeter;
use crate::{Callback, RankFigures, Report, StopFlag, TrainError, TrainerConfig};
use bonfire_comm::ProcessGroup;
use bonfire_data::Shard;
use bonfire_metrics::ConfusionMatrix;
use bonfire_parallel::{DataParallel, FlatOptimizer};
use bonfire_report::verdict::Verdict;
use burn::tensor::Device;
use std::time::{Instant, SystemTime};

/// One call of `fit`: everything that a training step touches.
pub(crate) struct Run<'a, M: Learnable> {
    pub(crate) config: &'a TrainerConfig,
    /// What a continuation of the run has to share with it: configuration and data.
    pub(crate) entries: Vec<(String, String)>,
    pub(crate) callbacks: &'a mut [Box<dyn Callback>],
    pub(crate) stop: &'a StopFlag,
    /// Sums of figures, and what rank 0 tells the others; apart from the gradients, since the order
    /// relative to them may differ between ranks.
    pub(crate) control: ProcessGroup,
    pub(crate) parallel: DataParallel<M>,
    /// Whether a forward pass waits for the other ranks'.
    pub(crate) synchronized: bool,
    pub(crate) precision: Precision,
    pub(crate) optimizer: Box<dyn FlatOptimizer>,
    pub(crate) schedule: Schedule,
    pub(crate) device: Device,
    pub(crate) position: Position,
    /// Steps taken before this call of `fit`.
    pub(crate) first_step: u64,
    pub(crate) times: StepTimes,
    pub(crate) usage: UsageMeter,
    /// Samples per rank and micro-batch.
    pub(crate) batch_size: usize,
    pub(crate) profiling: Option<Profiling>,
    /// Whether the profile that was asked for is made.
    pub(crate) profiled: bool,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) local: LocalMetrics,
    pub(crate) pending: Option<Pending>,
    /// Training figures of the epoch at hand, then of the last one.
    pub(crate) epoch_metrics: Metrics,
    pub(crate) valid_metrics: Option<Metrics>,
    /// Of the last validation, if it was asked for.
    pub(crate) confusion_matrix: Option<ConfusionMatrix>,
    pub(crate) samples: u64,
    pub(crate) first_step_at: Option<SystemTime>,
    pub(crate) stopped: bool,
    /// Whether a callback has said that training has come far enough.
    pub(crate) satisfied: bool,
    pub(crate) stopped_early: bool,
    /// Where the run stands, unless model, optimizer, schedule and callbacks are on their way from
    /// one state to the next: a failure then leaves nothing to save.
    pub(crate) settled: Option<Settled>,
    /// A step that has been begun and not been concluded.
    pub(crate) begun: Option<Begun>,
    /// Where the run stood when it last saved.
    pub(crate) saved: Option<Position>,
    /// Whether that was a best one.
    pub(crate) saved_as_best: bool,
    /// Whether rank 0's clock has asked for a checkpoint after the step at hand.
    pub(crate) save_now: bool,
    pub(crate) last_save: Instant,
    /// Writes checkpoints (on rank 0).
    pub(crate) writer: Writer,
    /// What the best checkpoint is measured by.
    pub(crate) best: Best,
    /// What it was before the last checkpoint of a best one.
    pub(crate) best_before: Best,
}

/// Figures on their way over the ranks, and where the run stood when they left.
pub(crate) struct Pending {
    metrics: PendingMetrics,
    at: ReportPlace,
}

/// Where the run stood when figures were summed.
struct ReportPlace {
    epoch: u64,
    step: u64,
    learning_rate: f64,
}

impl<M: Learnable> Run<'_, M> {
    pub(crate) fn shard(&self) -> Shard {
        Shard { index: self.control.rank(), count: self.control.world_size() }
    }

    /// The context of a training step.
    pub(crate) fn context(&self, micro_batch: usize) -> StepContext {
        StepContext {
            epoch: self.position.epoch,
            step: self.position.step,
            micro_batch,
            rank: self.control.rank(),
            world_size: self.control.world_size(),
            device: self.precision.training_device(&self.device),
            input_dtype: self.precision.training_inputs,
            label_smoothing: self.config.label_smoothing,
        }
    }

    pub(crate) fn samples_per_second(&self) -> f64 {
        let seconds = self.times.total().as_secs_f64();
        if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 }
    }

    /// The rate of the last step taken.
    pub(crate) fn learning_rate(&self) -> f64 {
        self.schedule.lr(self.position.scheduled.saturating_sub(1))
    }

    pub(crate) fn notify(
        &mut self,
        mut call: impl FnMut(&mut dyn Callback) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        self.callbacks.iter_mut().try_for_each(|callback| call(callback.as_mut()))
    }

    /// Sends the figures of the last steps over the ranks, and reports those sent before.
    ///
    /// Not for an epoch's last step: there a rank may have had no sample at all since a resume, and
    /// so not even the names of the figures.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn report(&mut self) -> Result<(), TrainError> {
        // On a device this waits for the steps whose figures they are.
        let local = self.times.wait(|| self.local.take())?;
        let own = self.take_figures();
        let metrics = PendingMetrics::start(&self.control, local, own)?;
        match self.pending.replace(Pending { metrics, at: self.report_place() }) {
            Some(before) => self.publish(before),
            None => Ok(()),
        }
    }

    /// Reports the figures that are on their way, and those of the steps since.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn report_rest(&mut self) -> Result<(), TrainError> {
        if let Some(before) = self.pending.take() {
            self.publish(before)?;
        }
        let local = self.times.wait(|| self.local.take())?;
        let metrics = reduce(&self.control, &local)?;
        let own = self.take_figures();
        let ranks = gather_figures(&self.control, own)?;
        self.publish_metrics(self.report_place(), metrics, ranks)
    }

    pub(crate) fn publish(&mut self, pending: Pending) -> Result<(), TrainError> {
        let (metrics, ranks) = pending.metrics.finish()?;
        self.publish_metrics(pending.at, metrics, ranks)
    }

    /// What this rank has done since this was last asked for.
    fn take_figures(&mut self) -> RankFigures {
        self.times.take_interval().with_usage(self.usage.take_interval())
    }

    fn report_place(&self) -> ReportPlace {
        let Position { epoch, step, .. } = self.position;
        ReportPlace { epoch, step, learning_rate: self.learning_rate() }
    }

    fn publish_metrics(
        &mut self,
        at: ReportPlace,
        metrics: Metrics,
        ranks: Vec<RankFigures>,
    ) -> Result<(), TrainError> {
        let ReportPlace { epoch, step, learning_rate } = at;
        if let Some(loss) = metrics.loss().filter(|loss| !loss.is_finite()) {
            return Err(TrainError::LossNotFinite { loss, step, epoch });
        }
        self.epoch_metrics.add(&metrics);
        if metrics.loss().is_none() {
            return Ok(());
        }
        let samples_per_second = self.samples_per_second();
        let report = Report { epoch, step, learning_rate, samples_per_second, metrics, ranks };
        self.notify(|callback| callback.on_report(&report))
    }
}
