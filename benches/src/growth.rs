//! Resident memory as steps go by.

use crate::networks::{Batches, NUM_CLASSES, Network};
use crate::task::{LEARNING_RATE, loader, mlp};
use crate::{Result, ranks, resident};
use bonfire::comm::ProcessGroup;
use bonfire::models::MlpConfig;
use bonfire::nn::{ImageClassifier, cross_entropy};
use bonfire::parallel::{DataParallel, DataParallelConfig, SgdConfig};
use bonfire::trainer::config::OptimizerPlan;
use bonfire::trainer::{Callback, StepEnd, TrainError, Trainer, TrainerConfig};
use burn::tensor::Device;
use std::sync::{Arc, Mutex, PoisonError};

/// How long, and in which loop.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Optimizer steps.
    #[arg(long, default_value_t = 10_000)]
    steps: u64,
    /// Steps between two readings.
    #[arg(long, default_value_t = 1_000)]
    every: u64,
    /// Trains in the `Trainer`, with its loader, in place of a loop over `DataParallel`.
    #[arg(long)]
    trainer: bool,
}

/// Trains; returns on rank 0 the resident bytes of each rank after every `every` steps, in JSON.
pub(crate) fn run(args: &Args) -> Result<Option<String>> {
    if args.every == 0 {
        return Err("--every 0: must be at least 1".into());
    }
    let world = ranks::world()?;
    let own = match args.trainer {
        true => in_trainer(args, &world)?,
        false => in_loop(args, &world)?,
    };
    let text = serde_json::to_string(&ranks::gather(&world, &own)?)?;
    Ok((world.rank() == 0).then_some(text))
}

fn in_loop(args: &Args, world: &ProcessGroup) -> Result<Vec<u64>> {
    let device = Device::flex();
    let image = Network::Mlp.image();
    let mut batches = Batches::new(image, Network::Mlp.batch_size(), &device);
    let model = MlpConfig { hidden: vec![256] }.init(image, NUM_CLASSES, &device.autodiff())?;
    let mut parallel = DataParallel::new(model, world, DataParallelConfig::default())?;
    let mut optimizer = SgdConfig::new().with_momentum(0.9).init()?;
    let mut readings = Vec::new();
    for step in 1..=args.steps {
        let (images, targets) = batches.next();
        let loss = cross_entropy(parallel.replica()?.forward(images), targets);
        parallel.backward(loss)?;
        parallel.step(&mut optimizer, LEARNING_RATE)?;
        if step.is_multiple_of(args.every) {
            readings.push(resident::now()?);
        }
    }
    Ok(readings)
}

fn in_trainer(args: &Args, world: &ProcessGroup) -> Result<Vec<u64>> {
    let device = Device::flex();
    let loader = loader(&device, 0)?;
    let optimizer = OptimizerPlan::Sgd {
        lr: LEARNING_RATE,
        momentum: 0.9,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        momentum_correction: true,
    };
    let config = TrainerConfig::new(optimizer).with_max_steps(args.steps);
    let readings: Arc<Mutex<Vec<u64>>> = Arc::default();
    let scales = Scales { every: args.every, readings: readings.clone() };
    let mut trainer = Trainer::new(config, world.clone()).with_callback(scales);
    trainer.fit(mlp(&device)?, &loader, None)?;
    let readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(readings.clone())
}

/// Reads the resident memory now and then.
struct Scales {
    every: u64,
    readings: Arc<Mutex<Vec<u64>>>,
}

impl Callback for Scales {
    fn name(&self) -> &str {
        "scales"
    }

    fn on_step_end(&mut self, end: &StepEnd) -> std::result::Result<(), TrainError> {
        if end.step.is_multiple_of(self.every) {
            let reading = resident::now().map_err(|source| TrainError::Io {
                action: "reading",
                path: "/proc/self/status".into(),
                source,
            })?;
            self.readings.lock().unwrap_or_else(PoisonError::into_inner).push(reading);
        }
        Ok(())
    }
}
