//! The same training in the `Trainer`, as one rank of a group.

use crate::stopwatch::Stopwatch;
use crate::task::{LEARNING_RATE, LOG_EVERY, loader, model};
use crate::{Options, Result, ranks};
use bonfire::trainer::config::OptimizerPlan;
use bonfire::trainer::{Callback, StepEnd, StopFlag, TrainError, Trainer, TrainerConfig};
use burn::tensor::Device;
use std::sync::{Arc, OnceLock};

/// Trains until the time is over; returns images per second over all ranks, on rank 0.
pub(crate) fn run(options: &Options) -> Result<Option<f64>> {
    let group = ranks::world()?;
    let first = group.rank() == 0;
    let device = Device::flex();
    let loader = loader(&device, options.workers)?;
    let model = model(&device)?;

    let optimizer = OptimizerPlan::Sgd {
        lr: LEARNING_RATE,
        momentum: 0.0,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        momentum_correction: true,
    };
    let config =
        TrainerConfig::new(optimizer).with_max_steps(u64::MAX).with_log_every_n_steps(LOG_EVERY);
    let figure = Arc::new(OnceLock::new());
    let stop = StopFlag::new();
    let mut trainer = Trainer::new(config, group).with_stop_flag(stop.clone());
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
