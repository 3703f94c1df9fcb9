//! The loop that one writes with Burn alone.

use crate::task::{BATCH_SIZE, LEARNING_RATE, LOG_EVERY, Network, cnn, loader, mlp};
use crate::turns::Pace;
use crate::{Options, Result};
use bonfire::data::Shard;
use bonfire::nn::{ImageClassifier, correct_predictions, cross_entropy};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor};

/// Trains until the time is over.
pub(crate) fn run(options: &Options, pace: &mut impl Pace) -> Result<()> {
    let device = Device::flex();
    match options.network {
        Network::Mlp => train(options, &device, mlp(&device)?, pace),
        Network::Cnn => train(options, &device, cnn(&device)?, pace),
    }
}

fn train<M: ImageClassifier>(
    options: &Options,
    device: &Device,
    mut model: M,
    pace: &mut impl Pace,
) -> Result<()> {
    let loader = loader(device, options.workers)?;
    let mut optimizer = SgdConfig::new().init();
    let mut figures = Figures::default();

    let mut epoch = 0;
    loop {
        for batch in loader.batches(Shard::whole(), epoch, 0)? {
            let Some(batch) = batch?.data else { continue };
            let scores = model.forward(batch.images);
            let correct = correct_predictions(scores.clone(), batch.targets.clone());
            let loss = cross_entropy(scores, batch.targets);
            figures.add(loss.clone().without_autodiff(), correct);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(LEARNING_RATE, model, gradients);
            if pace.step(BATCH_SIZE as u64) {
                return Ok(());
            }
        }
        epoch += 1;
    }
}

/// Loss and accuracy, summed on the device.
#[derive(Default)]
struct Figures {
    sums: Option<(Tensor<1>, Tensor<1, Int>)>,
    steps: u64,
}

impl Figures {
    fn add(&mut self, loss: Tensor<1>, correct: Tensor<1, Int>) {
        self.sums = Some(match self.sums.take() {
            Some((losses, corrects)) => (losses + loss, corrects + correct),
            None => (loss, correct),
        });
        self.steps += 1;
        if self.steps.is_multiple_of(LOG_EVERY)
            && let Some((losses, corrects)) = self.sums.take()
        {
            let figures = (losses.into_scalar::<f64>(), corrects.into_scalar::<f64>());
            std::hint::black_box(figures);
        }
    }
}
