//! The same training in the `Trainer`, as one rank of a group.

use crate::stopwatch::Stopwatch;
use crate::task::{LEARNING_RATE, LOG_EVERY, Network, cnn, loader, mlp};
use crate::{Options, Result, ranks};
use bonfire::trainer::config::{OnError, OptimizerPlan};
use bonfire::trainer::{
    Callback, ImageBatch, Learnable, ProfileConfig, ProgressPrinter, RunFolder, StepEnd, StopFlag,
    TrainError, Trainer, TrainerConfig,
};
use burn::tensor::Device;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What the trainer does beside training.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Args {
    /// Writes and prints what `bonfire train` does: progress, tables, event files, the report.
    #[arg(long)]
    outputs: bool,
    /// Measures all steps closely.
    #[arg(long)]
    profile: bool,
}

/// Trains until the time is over; returns images per second over all ranks, on rank 0.
pub(crate) fn run(args: Args, options: &Options) -> Result<Option<f64>> {
    let device = Device::flex();
    match options.network {
        Network::Mlp => train(args, options, &device, mlp(&device)?),
        Network::Cnn => train(args, options, &device, cnn(&device)?),
    }
}

fn train<M: Learnable<Batch = ImageBatch>>(
    args: Args,
    options: &Options,
    device: &Device,
    model: M,
) -> Result<Option<f64>> {
    let group = ranks::world()?;
    let first = group.rank() == 0;
    let loader = loader(device, options.workers)?;

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
    let figure = Arc::new(OnceLock::new());
    let stop = StopFlag::new();
    let mut trainer = Trainer::new(config, group).with_stop_flag(stop.clone());
    if first && args.outputs {
        trainer = trainer
            .with_callback(ProgressPrinter::new(Duration::from_secs(5)))
            .with_callback(folder.run_files(String::new(), String::new()))
            .with_callback(folder.metrics_file(OnError::Stop)?)
            .with_callback(folder.metrics_lines(OnError::Stop)?)
            .with_callback(folder.tensorboard(OnError::Stop))
            .with_callback(folder.report_page());
    }
    if first {
        let stopwatch = Stopwatch::new(options.measured()?);
        trainer = trainer.with_callback(Timer { stopwatch, stop, figure: figure.clone() });
    }
    trainer.fit(model, &loader, None)?;
    Ok(figure.get().copied())
}

/// Stops the run when the time is over.
struct Timer {
    stopwatch: Stopwatch,
    stop: StopFlag,
    figure: Arc<OnceLock<f64>>,
}

impl Callback for Timer {
    fn name(&self) -> &str {
        "timer"
    }

    fn on_step_end(&mut self, end: &StepEnd) -> std::result::Result<(), TrainError> {
        if self.stopwatch.step(end.samples) {
            self.figure.get_or_init(|| self.stopwatch.images_per_s());
            self.stop.stop();
        }
        Ok(())
    }
}
