//! The memory of a large perceptron with AdamW, as `DataParallel` counts it and as the system sees it.

use crate::networks::{Batches, NUM_CLASSES, Network};
use crate::{Result, ranks, resident};
use bonfire::models::MlpConfig;
use bonfire::nn::{ImageClassifier, cross_entropy};
use bonfire::parallel::{AdamWConfig, DataParallel, DataParallelConfig, ZeroStage};
use burn::module::Module;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

const SEED: u64 = 1;
const LEARNING_RATE: f64 = 1e-4;
const BATCH_SIZE: usize = 8;

/// How large, and how shared.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Stage of ZeRO: 0, 1 (the optimizer's state is shared) or 2 (gradients too).
    #[arg(long, default_value_t = 0)]
    stage: u8,
    /// Hidden layers.
    #[arg(long, default_value_t = 7)]
    layers: usize,
    /// Units of each.
    #[arg(long, default_value_t = 4096)]
    width: usize,
    /// Optimizer steps.
    #[arg(long, default_value_t = 4)]
    steps: usize,
}

/// Memory of all ranks.
#[derive(Serialize)]
struct Figures {
    num_parameters: usize,
    ranks: Vec<RankMemory>,
}

/// Bytes of one rank.
#[derive(Serialize, Deserialize)]
struct RankMemory {
    parameters: usize,
    gradients: usize,
    optimizer: usize,
    /// Most resident memory before the first step.
    peak_before_steps: u64,
    /// Most resident memory from there on.
    peak_in_steps: u64,
}

/// Trains a few steps; returns [`Figures`] in JSON on rank 0.
pub(crate) fn run(args: &Args) -> Result<Option<String>> {
    let world = ranks::world()?;
    let zero_stage = match args.stage {
        0 => ZeroStage::Off,
        1 => ZeroStage::Optimizer,
        2 => ZeroStage::Gradients,
        other => return Err(format!("--stage {other}: must be 0, 1 or 2").into()),
    };
    let device = Device::flex();
    device.seed(SEED);
    let image = Network::Mlp.image();
    let mut batches = Batches::new(image, BATCH_SIZE, &device);
    let model = MlpConfig { hidden: vec![args.width; args.layers] };
    let model = model.init(image, NUM_CLASSES, &device.autodiff())?;
    let num_parameters = model.num_params();
    let config = DataParallelConfig { zero_stage, ..DataParallelConfig::default() };
    let mut parallel = DataParallel::new(model, &world, config)?;
    let mut optimizer = AdamWConfig::new().init()?;

    let peak_before_steps = resident::peak()?;
    resident::forget_peak()?;
    for _ in 0..args.steps {
        let (images, targets) = batches.next();
        let loss = cross_entropy(parallel.replica()?.forward(images), targets);
        parallel.backward(loss)?;
        parallel.step(&mut optimizer, LEARNING_RATE)?;
    }
    let peak_in_steps = resident::peak()?;

    let used = parallel.memory(&optimizer);
    let own = RankMemory {
        parameters: used.parameters,
        gradients: used.gradients,
        optimizer: used.optimizer,
        peak_before_steps,
        peak_in_steps,
    };
    let figures = Figures { num_parameters, ranks: ranks::gather(&world, &own)? };
    let text = serde_json::to_string(&figures)?;
    Ok((world.rank() == 0).then_some(text))
}
