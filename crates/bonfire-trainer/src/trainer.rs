use crate::best::Best;
use crate::checkpoint::Writer;
use crate::config::RunLength;
use crate::learnable::Learnable;
use crate::lifecycle::Length;
use crate::metrics::{LocalMetrics, Metrics};
use crate::position::Position;
use crate::precision::Precision;
use crate::run::Run;
use crate::timing::StepTimes;
use crate::utilization::{DeviceMeter, UsageMeter};
use crate::{
    BatchSource, Callback, RankFigures, StopFlag, TimeShare, TrainError, TrainerConfig, Variant,
};
use crate::{agreement, optimizer};
use bonfire_comm::ProcessGroup;
use bonfire_data::Shard;
use bonfire_metrics::ConfusionMatrix;
use bonfire_nn::{connect_sync_batchnorm, is_synchronized};
use bonfire_parallel::{DataParallel, GradientReduction, MemoryUse};
use bonfire_report::verdict::Verdict;
use bonfire_tensor::parameters;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

/// Trains a model on all ranks of a group.
///
/// ```ignore
/// let mut trainer = Trainer::new(TrainerConfig::new(optimizer).with_max_epochs(3), group);
/// let report = trainer.fit(model, &train, Some(&valid))?;
/// ```
pub struct Trainer {
    config: TrainerConfig,
    group: ProcessGroup,
    callbacks: Vec<Box<dyn Callback>>,
    stop: StopFlag,
    device_meter: Option<Box<dyn DeviceMeter>>,
}

/// What a run came to; equal on every rank but for times.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FitReport<M> {
    /// The trained model, with autodiff.
    pub model: M,
    /// Other values of the model that callbacks kept; see [`into_variant`](Self::into_variant).
    pub variants: Vec<Variant>,
    /// Processes in the group.
    pub world_size: usize,
    /// Whole epochs done, over all resumes.
    pub epochs: u64,
    /// Optimizer steps, over all resumes, skipped ones included.
    pub steps: u64,
    /// Steps that an overflow kept from the parameters, where the loss is scaled.
    pub skipped_steps: Option<u64>,
    /// Training figures of the last epoch over all ranks.
    pub train: Metrics,
    /// Figures of the last validation over all ranks.
    pub valid: Option<Metrics>,
    /// How often each class was taken for which, in the last validation over all ranks, if
    /// [`TrainerConfig::metrics`] asks for it.
    pub confusion_matrix: Option<ConfusionMatrix>,
    /// Training samples per second over all ranks, without validation.
    pub samples_per_second: f64,
    /// When this rank's first optimizer step was done.
    pub first_step_at: Option<SystemTime>,
    /// Where this rank's training time went.
    pub time_share: TimeShare,
    /// What each rank has done in this call, in the order of the ranks.
    pub ranks: Vec<RankFigures>,
    /// What the profile has shown, if one was made.
    pub verdict: Option<Verdict>,
    /// Payload bytes that this rank has sent for gradients and parameters in this call.
    pub bytes_sent: u64,
    /// The same for each optimizer step.
    pub bytes_sent_per_step: f64,
    /// Bytes of parameters, gradients and optimizer state on this rank.
    pub memory: MemoryUse,
    /// Fingerprint of the parameters in path order.
    pub parameters_xxh3: u64,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// Whether a callback found that training had come far enough, before the budget was used up.
    pub stopped_early: bool,
    /// The newest checkpoint (rank 0 only).
    pub checkpoint: Option<PathBuf>,
}

impl<M: Learnable> FitReport<M> {
    /// The model with the values of a variant instead of its own, `"ema"` for example; `None` if
    /// there is none of that name.
    ///
    /// Takes the report, since clones of a model share running statistics.
    ///
    /// # Errors
    /// When the values cannot be written.
    pub fn into_variant(self, name: &str) -> Result<Option<M>, TrainError> {
        let Some(variant) = self.variants.into_iter().find(|variant| variant.name == name) else {
            return Ok(None);
        };
        Ok(Some(parameters::write(self.model, variant.values)?))
    }
}

impl Trainer {
    /// Makes a trainer for this process' rank in `group`.
    pub fn new(config: TrainerConfig, group: ProcessGroup) -> Self {
        let stop = StopFlag::new();
        Self { config, group, callbacks: Vec::new(), stop, device_meter: None }
    }

    /// Adds a callback behind those there are.
    pub fn with_callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Uses a flag by which the run can be asked to stop.
    pub fn with_stop_flag(mut self, stop: StopFlag) -> Self {
        self.stop = stop;
        self
    }

    /// Measures with it how busy the device is, in the next call of [`fit`](Self::fit).
    pub fn with_device_meter(mut self, meter: Option<Box<dyn DeviceMeter>>) -> Self {
        self.device_meter = meter;
        self
    }

    /// Trains `model` on `train` until the budget is used up, and validates it on `valid`.
    ///
    /// The parameters are rank 0's at the start and equal on all ranks at the end. Every sample has
    /// the same weight, whatever the number of ranks.
    ///
    /// # Collective
    /// All ranks of the group, with models and data built alike.
    ///
    /// # Errors
    /// [`TrainError`]; a failure of one rank is an error on all of them.
    pub fn fit<M: Learnable>(
        &mut self,
        model: M,
        train: &dyn BatchSource<Batch = M::Batch>,
        valid: Option<&dyn BatchSource<Batch = M::Batch>>,
    ) -> Result<FitReport<M>, TrainError> {
        let result = self.run(model, train, valid);
        if let Err(error) = &result {
            self.callbacks.iter_mut().for_each(|callback| callback.on_exception(error));
            if !seen_by_all(error) {
                self.group.abort(&error.to_string());
            }
        }
        result
    }

    fn run<M: Learnable>(
        &mut self,
        model: M,
        train: &dyn BatchSource<Batch = M::Batch>,
        valid: Option<&dyn BatchSource<Batch = M::Batch>>,
    ) -> Result<FitReport<M>, TrainError> {
        self.check_callbacks()?;
        let entries = self.check_agreement(train, valid)?;
        let mut run = self.start(model, train, entries)?;
        let end = Length::of(run.config, train, run.shard());
        run.resume(end)?;
        run.first_step = run.position.step;
        let fit = run.fit_start(end);
        run.notify(|callback| callback.on_fit_start(&fit))?;
        // The state of the last finished step is worth keeping whatever has ended the run.
        match catch_unwind(AssertUnwindSafe(|| run.train(train, valid, end))) {
            Ok(Ok(())) => run.finish(),
            Ok(Err(error)) => {
                run.rescue(Some(&error));
                Err(error)
            }
            Err(panic) => {
                run.rescue(None);
                resume_unwind(panic)
            }
        }
    }

    /// Checks that callbacks with something to keep have names of their own.
    fn check_callbacks(&mut self) -> Result<(), TrainError> {
        let mut names = BTreeSet::new();
        for callback in &mut self.callbacks {
            let name = callback.name().to_string();
            if callback.stateful().is_some() && !names.insert(name.clone()) {
                return Err(TrainError::CallbackNames { name });
            }
        }
        Ok(())
    }

    /// Checks that ranks agree on how to train and on what, and that there is something to do.
    ///
    /// Returns what a continuation of this run has to share with it.
    fn check_agreement<B: Send + 'static>(
        &self,
        train: &dyn BatchSource<Batch = B>,
        valid: Option<&dyn BatchSource<Batch = B>>,
    ) -> Result<Vec<(String, String)>, TrainError> {
        self.config.validate()?;
        let (samples, ranks) = (train.num_samples(), self.group.world_size());
        let shard = Shard { index: self.group.rank(), count: ranks };
        let mut data = agreement::data_entries("training", train, shard);
        let mut all = self.config.entries();
        all.push(("--resume".to_string(), self.config.resume.word().to_string()));
        agreement::check(&self.group, "configuration", &all)?;
        let training = data.clone();
        if let Some(valid) = valid {
            data.extend(agreement::data_entries("validation", valid, shard));
        }
        agreement::check(&self.group, "data", &data)?;
        if samples < ranks {
            return Err(TrainError::TooFewSamples { split: "training", samples, ranks });
        }
        let Length { steps_per_epoch, total_steps, .. } = Length::of(&self.config, train, shard);
        if steps_per_epoch == 0 {
            return Err(TrainError::NoSteps { samples });
        }
        let length = RunLength { steps_per_epoch, total_steps };
        self.config.check_schedule(length, valid.is_some())?;
        self.config.check_monitor(valid.is_some())?;
        Ok(self.config.entries().into_iter().chain(training).collect())
    }

    fn start<M: Learnable>(
        &mut self,
        model: M,
        train: &dyn BatchSource<Batch = M::Batch>,
        entries: Vec<(String, String)>,
    ) -> Result<Run<'_, M>, TrainError> {
        let device = model.devices().into_iter().next().unwrap_or_default().without_autodiff();
        let nominal = train.batch_size() as f64;
        let mut parallel = self.config.parallel.clone();
        parallel.reduction = GradientReduction::PerSample { nominal };
        let precision = Precision::new(&self.config)?;
        let model = precision.prepare(model, &mut parallel, self.config.master_weights)?;
        let shard = Shard { index: self.group.rank(), count: self.group.world_size() };
        let model = connect_sync_batchnorm(model, &self.group)?;
        let synchronized = is_synchronized(&model);
        if synchronized {
            check_last_batch(train, shard)?;
        }
        let parallel = DataParallel::new(model, &self.group, parallel)?;
        let Length { steps_per_epoch, total_steps, .. } = Length::of(&self.config, train, shard);
        let length = RunLength { steps_per_epoch, total_steps };
        Ok(Run {
            control: self.group.duplicate("control")?,
            optimizer: optimizer::build(&self.config.optimizer)?,
            schedule: self.config.schedule(length),
            config: &self.config,
            entries,
            callbacks: &mut self.callbacks,
            stop: &self.stop,
            parallel,
            synchronized,
            precision,
            device,
            position: Position::default(),
            first_step: 0,
            times: StepTimes::default(),
            usage: UsageMeter::new(self.device_meter.take()),
            batch_size: train.batch_size(),
            profiling: None,
            profiled: false,
            verdict: None,
            local: LocalMetrics::default(),
            pending: None,
            epoch_metrics: Metrics::default(),
            valid_metrics: None,
            confusion_matrix: None,
            samples: 0,
            first_step_at: None,
            stopped: false,
            satisfied: false,
            stopped_early: false,
            settled: None,
            begun: None,
            saved: None,
            saved_as_best: false,
            save_now: false,
            last_save: Instant::now(),
            writer: Writer::default(),
            best: Best::of(self.config.checkpoint.keep_best.as_ref()),
            best_before: Best::default(),
        })
    }
}

/// Refuses data whose last batch leaves a rank without samples.
fn check_last_batch<B: Send + 'static>(
    train: &dyn BatchSource<Batch = B>,
    shard: Shard,
) -> Result<(), TrainError> {
    let before = train.num_batches(shard).saturating_sub(1) * train.batch_size() * shard.count;
    let last = train.num_samples().saturating_sub(before);
    match last < shard.count {
        true => Err(TrainError::RankWithoutSamples { samples: last, ranks: shard.count }),
        false => Ok(()),
    }
}

/// Errors that every rank has found by itself at the same point.
fn seen_by_all(error: &TrainError) -> bool {
    use bonfire_parallel::ParallelError;
    matches!(
        error,
        TrainError::RanksDisagree { .. }
            | TrainError::TooFewSamples { .. }
            | TrainError::NoSteps { .. }
            | TrainError::RankWithoutSamples { .. }
            | TrainError::WarmupTooLong { .. }
            | TrainError::NothingToWatch { .. }
            | TrainError::CallbackNames { .. }
            | TrainError::NothingToMonitor { .. }
            | TrainError::NoRoom { .. }
            | TrainError::LossNotFinite { .. }
            | TrainError::ParametersDiffer { .. }
            | TrainError::OtherRank { .. }
            | TrainError::Checkpoint(_)
            | TrainError::Comm(_)
            | TrainError::Parallel(ParallelError::ModelsDiffer { .. })
            | TrainError::Parallel(ParallelError::NothingToTrain)
            | TrainError::Parallel(ParallelError::Setting { .. })
            | TrainError::Parallel(ParallelError::Amp(_))
            | TrainError::Parallel(ParallelError::GradientNotFinite { .. })
            | TrainError::Parallel(ParallelError::ParameterGroups { .. })
            | TrainError::Parallel(ParallelError::HookSetting { .. })
            | TrainError::Parallel(ParallelError::UnusedParameters { .. })
            | TrainError::Parallel(ParallelError::ReplicasDiffer { .. })
            | TrainError::Parallel(ParallelError::Comm(_))
    )
}
