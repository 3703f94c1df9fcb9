//! The same training in the `Trainer`, as one rank of a group.

use crate::task::{LEARNING_RATE, LOG_EVERY, Network, cnn, loader, mlp};
use crate::turns::Pace;
use crate::{Options, Result};
use bonfire::comm::ProcessGroup;
use bonfire::trainer::config::{OnError, OptimizerPlan};
use bonfire::trainer::{
    Callback, ImageBatch, Learnable, ProfileConfig, ProgressPrinter, RunFolder, StepEnd, StopFlag,
    TrainError, Trainer, TrainerConfig,
};
use burn::tensor::Device;
use std::time::Duration;

/// What the trainer does beside training.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Args {
    /// Writes and prints what `bonfire train` does: progress, tables, event files, the report.
    #[arg(long)]
    pub(crate) outputs: bool,
    /// Measures all steps closely.
    #[arg(long)]
    pub(crate) profile: bool,
}

/// Trains until the time is over. `pace` is made on every rank when all is ready, and gone when this
/// returns; that of rank 0 says when to stop.
pub(crate) fn run<P: Pace + 'static>(
    args: Args,
    options: &Options,
    group: &ProcessGroup,
    pace: impl FnOnce() -> P,
) -> Result<()> {
    let device = Device::flex();
    match options.network {
        Network::Mlp => train(args, options, group, mlp(&device)?, pace),
        Network::Cnn => train(args, options, group, cnn(&device)?, pace),
    }
}

fn train<M: Learnable<Batch = ImageBatch>, P: Pace + 'static>(
    args: Args,
    options: &Options,
    group: &ProcessGroup,
    model: M,
    pace: impl FnOnce() -> P,
) -> Result<()> {
    let first = group.rank() == 0;
    let loader = loader(&Device::flex(), options.workers)?;

    let optimizer = OptimizerPlan::Sgd {
        lr: LEARNING_RATE,
        momentum: 0.0,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        momentum_correction: true,
    };
    let scratch = tempfile::tempdir()?;
    let folder = RunFolder::create(scratch.path())?;
    let mut config =
        TrainerConfig::new(optimizer).with_max_steps(u64::MAX).with_log_every_n_steps(LOG_EVERY);
    if args.profile {
        let profile = ProfileConfig::new(0..u64::MAX);
        config = config.with_profile(ProfileConfig { folder: Some(folder.profile()), ..profile });
    }
    let stop = StopFlag::new();
    let mut trainer = Trainer::new(config, group.clone()).with_stop_flag(stop.clone());
    if first && args.outputs {
        trainer = trainer
            .with_callback(ProgressPrinter::new(Duration::from_secs(5)))
            .with_callback(folder.run_files(String::new(), String::new()))
            .with_callback(folder.metrics_file(OnError::Stop)?)
            .with_callback(folder.metrics_lines(OnError::Stop)?)
            .with_callback(folder.tensorboard(OnError::Stop))
            .with_callback(folder.report_page());
    }
    trainer = trainer.with_callback(Timer { pace: pace(), stop: first.then_some(stop) });
    trainer.fit(model, &loader, None)?;
    Ok(())
}

/// Stops the run when the time is over.
struct Timer<P> {
    pace: P,
    /// On rank 0.
    stop: Option<StopFlag>,
}

impl<P: Pace> Callback for Timer<P> {
    fn name(&self) -> &str {
        "timer"
    }

    fn on_step_end(&mut self, end: &StepEnd) -> std::result::Result<(), TrainError> {
        if self.pace.step(end.samples)
            && let Some(stop) = &self.stop
        {
            stop.stop();
        }
        Ok(())
    }
}
