//! Images per second of ResNet-50.

use crate::{Precision, Result, SectionArgs, model, word};
use bonfire::amp::{GradScalerConfig, MixedPrecision};
use bonfire::comm::ProcessGroup;
use bonfire::models::ResNet;
use bonfire::nn::{ImageClassifier, cross_entropy};
use bonfire::parallel::{DataParallel, DataParallelConfig, Sgd, SgdConfig, StepOptions};
use burn::tensor::{Device, Int, Tensor};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const LEARNING_RATE: f64 = 0.1;
/// Steps of a measured round.
const ROUND: usize = 10;
/// Steps in which kernels are compiled and chosen.
const WARM_UP: usize = 6;

/// A training of ResNet-50 on one batch, as PyTorch's script beside it has it.
pub(crate) struct Training {
    parallel: DataParallel<ResNet>,
    optimizer: Sgd,
    scaler: Option<bonfire::amp::GradScaler>,
    mixed: Option<MixedPrecision>,
    images: Tensor<4>,
    classes: Tensor<1, Int>,
    begun: Option<bonfire::parallel::StepInProgress>,
    last_loss: Option<Tensor<1>>,
}

impl Training {
    pub(crate) fn new(
        precision: Precision,
        batch: usize,
        image: usize,
        device: &Device,
    ) -> Result<Self> {
        let mixed = precision.mixed();
        let config =
            DataParallelConfig { mixed_precision: mixed.clone(), ..DataParallelConfig::default() };
        let model = model::resnet50(image, device)?;
        let parallel = DataParallel::new(model, &ProcessGroup::single(), config)?;
        let optimizer = SgdConfig::new().with_momentum(0.9).with_weight_decay(1e-4).init()?;
        let scales = mixed.as_ref().is_some_and(MixedPrecision::needs_scaler);
        let scaler = scales.then(|| GradScalerConfig::new().init()).transpose()?;
        let (images, classes) = model::noise(batch, image, &device.clone().autodiff());
        let (begun, last_loss) = (None, None);
        Ok(Self { parallel, optimizer, scaler, mixed, images, classes, begun, last_loss })
    }

    pub(crate) fn step(&mut self) -> Result<()> {
        let images = match &self.mixed {
            Some(mixed) => mixed.cast_input(self.images.clone()),
            None => self.images.clone(),
        };
        let loss = cross_entropy(self.parallel.replica()?.forward(images), self.classes.clone());
        self.last_loss = Some(loss.clone().without_autodiff());
        let loss = match &self.scaler {
            Some(scaler) => scaler.scale_loss(loss),
            None => loss,
        };
        self.parallel.backward(loss)?;
        if let Some(begun) = self.begun.take() {
            self.parallel.conclude(begun, &mut self.optimizer, self.scaler.as_mut())?;
        }
        let mut options = StepOptions::new();
        if let Some(scaler) = &mut self.scaler {
            options = options.with_scaler(scaler);
        }
        self.begun = Some(self.parallel.begin_step(&mut self.optimizer, LEARNING_RATE, options)?);
        Ok(())
    }

    /// Waits for the device; returns the last loss.
    pub(crate) fn wait(&mut self) -> Result<f32> {
        if let Some(begun) = self.begun.take() {
            self.parallel.conclude(begun, &mut self.optimizer, self.scaler.as_mut())?;
        }
        // The parameters come last.
        let path = self.parallel.specs().first().map(|spec| spec.path.clone()).unwrap_or_default();
        let state = bonfire::tensor::parameters::read(self.parallel.model(), |s| s.path == path)?;
        drop(state);
        Ok(self.last_loss.take().map_or(f32::NAN, Tensor::into_scalar))
    }
}

pub(crate) fn run(args: &SectionArgs) -> Result<Value> {
    let device = args.device.device()?;
    let begin = Instant::now();
    let mut training = Training::new(args.precision, args.batch, args.image, &device)?;
    training.step()?;
    training.wait()?;
    let first_step = begin.elapsed();
    for _ in 0..WARM_UP {
        training.step()?;
    }
    training.wait()?;
    let warm_up = begin.elapsed();
    let budget = Duration::try_from_secs_f64(args.seconds)?;
    let (start, mut rounds, mut loss) = (Instant::now(), Vec::new(), 0.0);
    while rounds.is_empty() || start.elapsed() < budget {
        let round = Instant::now();
        for _ in 0..ROUND {
            training.step()?;
        }
        let submitted = round.elapsed();
        loss = training.wait()?;
        let seconds = round.elapsed().as_secs_f64();
        rounds.push((args.batch * ROUND) as f64 / seconds);
        eprintln!("{:.1} images/s, submitted in {submitted:.1?}", rounds[rounds.len() - 1]);
    }
    let mut sorted = rounds.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(json!({
        "precision": word(args.precision),
        "batch": args.batch,
        "image": args.image,
        "images_per_s": sorted[sorted.len() / 2],
        "rounds": rounds,
        "first_step_s": first_step.as_secs_f64(),
        "warm_up_s": warm_up.as_secs_f64(),
        "loss": loss,
        "scale": training.scaler.as_ref().map(bonfire::amp::GradScaler::scale),
    }))
}
