//! What a checkpoint costs a training: ResNet-18 with momentum in the `Trainer`, which saves after every
//! fifth step.
//!
//! Prints medians in milliseconds, as JSON: a step without a checkpoint, the time that one adds between
//! two steps, the longest such time, a copy of the same tensors, and the writing itself.
#![allow(clippy::print_stdout, reason = "the figures go to standard output")]

use bonfire::comm::ProcessGroup;
use bonfire::data::{DataLoader, Image, ImageSample, InMemoryDataset, LoaderConfig};
use bonfire::models::ResNetConfig;
use bonfire::nn::ImageShape;
use bonfire::trainer::checkpoint::{self, Keep};
use bonfire::trainer::config::{CheckpointPlan, OptimizerPlan};
use bonfire::trainer::{
    Callback, ImageCollate, StepEnd, TrainError, Trainer, TrainerConfig, keep_freed_memory,
};
use burn::tensor::Device;
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const STEPS: u64 = 61;
const EVERY: u64 = 5;
const BATCH_SIZE: usize = 2;
const IMAGE: ImageShape = ImageShape { channels: 3, height: 32, width: 32 };
const OPTIMIZER: OptimizerPlan = OptimizerPlan::Sgd {
    lr: 0.01,
    momentum: 0.9,
    dampening: 0.0,
    weight_decay: 0.0,
    nesterov: false,
    momentum_correction: true,
};

/// Notes when steps begin and end.
#[derive(Clone, Default)]
struct Clock(Arc<Mutex<Vec<(Instant, Instant)>>>);

impl Clock {
    fn note(&self, f: impl FnOnce(&mut Vec<(Instant, Instant)>)) {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Callback for Clock {
    fn name(&self) -> &str {
        "clock"
    }

    fn on_step_start(&mut self, _epoch: u64, _step: u64) -> Result<(), TrainError> {
        let now = Instant::now();
        self.note(|steps| steps.push((now, now)));
        Ok(())
    }

    fn on_step_end(&mut self, _end: &StepEnd) -> Result<(), TrainError> {
        self.note(|steps| {
            if let Some(step) = steps.last_mut() {
                step.1 = Instant::now();
            }
        });
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    keep_freed_memory();
    let folder = tempfile::tempdir()?;
    let steps = train(folder.path())?;
    // Between the end of a step and the start of the next one.
    let gap = |step: usize| steps[step + 1].0 - steps[step].1;
    let saves = |step: &usize| (*step as u64 + 1).is_multiple_of(EVERY);
    let gaps = |wanted: bool| -> Vec<Duration> {
        (0..steps.len() - 1).filter(|step| saves(step) == wanted).map(gap).collect()
    };
    let whole: Vec<Duration> = steps.iter().map(|(start, end)| *end - *start).collect();
    let (with, without) = (gaps(true), gaps(false));
    let longest = with.iter().max().copied().unwrap_or_default();

    let saved = checkpoint::load(folder.path())?;
    let bytes: u64 = saved.manifest.files.iter().map(|file| file.bytes).sum();
    let mut copies = Vec::new();
    for _ in 0..15 {
        let start = Instant::now();
        let copy = black_box(saved.state.clone());
        copies.push(start.elapsed());
        drop(copy);
    }
    let elsewhere = tempfile::tempdir()?;
    let mut writes = Vec::new();
    for _ in 0..5 {
        let again = saved.clone();
        let start = Instant::now();
        checkpoint::save(elsewhere.path(), again, Keep::last(1))?;
        writes.push(start.elapsed());
    }
    let figures = serde_json::json!({
        "bytes": bytes,
        "step_ms": median(whole),
        "added_ms": median(with) - median(without),
        "longest_ms": milliseconds(longest),
        "copy_ms": median(copies),
        "write_ms": median(writes),
    });
    println!("{figures}");
    Ok(())
}

fn train(folder: &Path) -> Result<Vec<(Instant, Instant)>, Box<dyn Error>> {
    let device = Device::flex();
    device.seed(1);
    let samples = (0..STEPS as usize * BATCH_SIZE).map(|index| -> Result<_, Box<dyn Error>> {
        let image = Image::new(vec![(index * 37 % 251) as u8; 32 * 32 * 3], [32, 32, 3])?;
        Ok(ImageSample { image, label: (index % 10) as u32 })
    });
    let samples = samples.collect::<Result<Vec<_>, _>>()?;
    let collate = ImageCollate::new(IMAGE, Some((0.5, 0.29)), &device);
    let config = LoaderConfig { batch_size: BATCH_SIZE, ..LoaderConfig::default() };
    let loader =
        DataLoader::new(Arc::new(InMemoryDataset::new(samples)), Arc::new(collate), config);
    let network = ResNetConfig { depth: 18, ..ResNetConfig::default() };
    let model = network.init(IMAGE, 10, &device.autodiff())?;
    let plan = CheckpointPlan {
        every_n_steps: Some(EVERY),
        every_n_epochs: 0,
        keep_last: 1,
        ..CheckpointPlan::default()
    };
    let config = TrainerConfig { checkpoint: plan, ..TrainerConfig::new(OPTIMIZER) }
        .with_max_steps(STEPS)
        .with_checkpoints(folder);
    let clock = Clock::default();
    Trainer::new(config, ProcessGroup::single())
        .with_callback(clock.clone())
        .fit(model, &loader, None)?;
    let steps = clock.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(steps)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| milliseconds(*time))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
