//! A Burn model of one's own in the `Trainer`: an autoencoder that squeezes 8x8 digits into eight
//! numbers and draws them again.
//!
//! A model says what a step computes ([`Learnable`]); the trainer does the rest. Run it from the
//! root of the repository, alone:
//!
//! ```text
//! cargo run --release -p trainer_fit
//! ```
//!
//! or once for every rank, each with its own `RANK`:
//!
//! ```text
//! export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
//! RANK=1 cargo run --release -p trainer_fit &
//! RANK=0 cargo run --release -p trainer_fit
//! ```
#![allow(clippy::print_stdout, reason = "what it prints is what an example is for")]

use bonfire::prelude::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::{Device, Tensor};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Two linear layers down to the code and two up again.
#[derive(Module, Debug)]
struct Autoencoder {
    encode: Linear,
    squeeze: Linear,
    unfold: Linear,
    decode: Linear,
}

impl Autoencoder {
    fn new(pixels: usize, code: usize, device: &Device) -> Self {
        const HIDDEN: usize = 64;
        Self {
            encode: LinearConfig::new(pixels, HIDDEN).init(device),
            squeeze: LinearConfig::new(HIDDEN, code).init(device),
            unfold: LinearConfig::new(code, HIDDEN).init(device),
            decode: LinearConfig::new(HIDDEN, pixels).init(device),
        }
    }

    /// Draws images (shape `[batch, pixels]`, values in 0..1) again from their codes.
    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let code = self.squeeze.forward(relu(self.encode.forward(images)));
        sigmoid(self.decode.forward(relu(self.unfold.forward(code))))
    }

    /// Loss and figures of a batch, the same in training and validation.
    fn step(&self, batch: ImageBatch) -> StepOutput {
        let samples = batch.len();
        let images: Tensor<2> = batch.images.flatten(1, 3);
        let error = self.forward(images.clone()) - images;
        let absolute = error.clone().abs().mean().mul_scalar(samples as f64);
        let loss = error.square().mean();
        // The trainer reports sum / count over all ranks, exact for batches of any size.
        StepOutput::mean(loss, samples).with_metric("absolute_error", absolute, samples as f64)
    }
}

impl Learnable for Autoencoder {
    type Batch = ImageBatch;

    fn training_step(&self, batch: ImageBatch, _context: &StepContext) -> StepOutput {
        self.step(batch)
    }

    fn validation_step(&self, batch: ImageBatch, _context: &StepContext) -> StepOutput {
        self.step(batch)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    keep_freed_memory();
    let group = match RankEnv::detect()? {
        Some(env) => init_process_group(&env, InitOptions::default())?,
        None => ProcessGroup::single(),
    };
    let device = Device::flex();

    let image = ImageShape { channels: 1, height: 8, width: 8 };
    let collate = Arc::new(ImageCollate::new(image, None, &device));
    let batch_size = 48 / group.world_size();
    let config = LoaderConfig { batch_size, workers: 1, ..LoaderConfig::default() };
    let open = |split, config| {
        let digits = Arc::new(IdxImages::open_folder("data/digits", split)?);
        Ok::<_, DataError>(DataLoader::new(digits, collate.clone(), config))
    };
    let train = open(Split::Train, LoaderConfig { shuffle: true, ..config })?;
    let valid = open(Split::Test, config)?;

    let optimizer =
        OptimizerPlan::AdamW { lr: 3e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 };
    let config = TrainerConfig::new(optimizer).with_max_epochs(20).with_log_every_n_steps(10);
    let mut trainer = Trainer::new(config, group.clone())
        .with_callback(ProgressPrinter::new(Duration::from_secs(5)));

    let model = Autoencoder::new(64, 8, &device.autodiff());
    let report = trainer.fit(model, &train, Some(&valid))?;

    if let (0, Some(valid)) = (group.rank(), &report.valid) {
        let error = valid.mean("absolute_error").unwrap_or(f64::NAN);
        println!("{} steps, mean absolute error of a test pixel {error:.4}", report.steps);
    }
    Ok(())
}
