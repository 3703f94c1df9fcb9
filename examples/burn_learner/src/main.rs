//! A program of Burn's own learner, trained by several processes: the lines that end in `// (1)`,
//! `// (2)` and `// (3)` are all that Burn alone would not have.
//!
//! Run it from the root of the repository, alone:
//!
//! ```text
//! cargo run --release -p burn_learner
//! ```
//!
//! or once for every rank, each with its own `RANK` (under torchrun, `mpirun` or `srun` the
//! variables are there already):
//!
//! ```text
//! cargo build --release -p burn_learner
//! export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
//! RANK=1 target/release/burn_learner &
//! RANK=0 target/release/burn_learner
//! ```
#![allow(clippy::print_stdout, reason = "what it prints is what an example is for")]

use bonfire::data::{IdxImages, Split};
use bonfire::trainer::burn_learner::{
    DataParallelStrategy, DataParallelTraining, DistributedLoaderBuilder,
};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::renderer::CliMetricsRenderer;
use burn::train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};
use std::error::Error;

const PIXELS: usize = 64;
const CLASSES: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let bonfire = bonfire::init()?; // (1)
    let folder = bonfire.artifact_folder("runs/burn_learner")?;
    let device = Device::flex().autodiff();
    device.seed(7);

    let train = DistributedLoaderBuilder::new(Stack) // (2) Burn has DataLoaderBuilder
        .batch_size(48 / bonfire.world_size())
        .shuffle(7)
        .num_workers(1)
        .build(digits(Split::Train)?)?;
    let valid = DataLoaderBuilder::new(Stack).batch_size(100).build(digits(Split::Test)?);

    let training = SupervisedTraining::new(folder, train, valid)
        .num_epochs(10)
        .metrics((LossMetric::new(), AccuracyMetric::new()))
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_default_checkpointers()
        .summary()
        .with_data_parallel(DataParallelStrategy::new()?); // (3)
    let learner = Learner::new(Net::new(&device), AdamWConfig::new().init(), 2e-3);
    let result = training.launch(learner);

    if bonfire.rank() == 0 {
        println!("trained {} parameters", result.model.num_params());
    }
    Ok(())
}

/// A perceptron with one hidden layer.
#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(PIXELS, 64).init(device),
            output: LinearConfig::new(64, CLASSES).init(device),
        }
    }

    fn classify(&self, batch: Digits) -> ClassificationOutput {
        let logits = self.output.forward(relu(self.hidden.forward(batch.images)));
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        let loss = loss.forward(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, logits, batch.labels)
    }
}

impl TrainStep for Net {
    type Input = Digits;
    type Output = ClassificationOutput;

    fn step(&self, batch: Digits) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Digits;
    type Output = ClassificationOutput;

    fn step(&self, batch: Digits) -> ClassificationOutput {
        self.classify(batch)
    }
}

type Digit = (Vec<u8>, u32);

/// Handwritten digits of 8x8 pixels.
fn digits(split: Split) -> Result<InMemDataset<Digit>, Box<dyn Error>> {
    let digits = IdxImages::open_folder("data/digits", split)?;
    let images = digits.pixels().chunks_exact(PIXELS).map(<[u8]>::to_vec);
    let labels = digits.labels().iter().map(|label| u32::from(*label));
    Ok(InMemDataset::new(images.zip(labels).collect()))
}

#[derive(Debug, Clone)]
struct Digits {
    /// Shape `[batch, 64]`, values in 0..1.
    images: Tensor<2>,
    /// Shape `[batch]`.
    labels: Tensor<1, Int>,
}

struct Stack;

impl Batcher<Digit, Digits> for Stack {
    fn batch(&self, items: Vec<Digit>, device: &Device) -> Digits {
        let shape = [items.len(), PIXELS];
        let pixels = items.iter().flat_map(|(image, _)| image).map(|x| f32::from(*x) / 255.0);
        let images = TensorData::new(pixels.collect::<Vec<f32>>(), shape);
        let labels: Vec<i64> = items.iter().map(|(_, label)| i64::from(*label)).collect();
        Digits {
            images: Tensor::from_data(images, device),
            labels: Tensor::from_data(labels.as_slice(), device),
        }
    }
}
