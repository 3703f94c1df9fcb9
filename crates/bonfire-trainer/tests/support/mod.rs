//! A small regression whose batches are plain numbers.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::ProcessGroup;
use bonfire_data::{DataError, DataLoader, InMemoryDataset, LoaderConfig};
use bonfire_trainer::config::OptimizerPlan;
use bonfire_trainer::{Learnable, StepContext, StepOutput, Trainer, TrainerConfig};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear};
use burn::tensor::{DType, Device, Tensor, TensorData};
use std::sync::Arc;

const FEATURES: usize = 3;

/// Features and what is to be predicted.
pub type Point = ([f32; FEATURES], f32);

pub type Collate = fn(Vec<Point>) -> Result<Vec<Point>, DataError>;
pub type Loader = DataLoader<InMemoryDataset<Point>, Collate>;

pub const SGD: OptimizerPlan = OptimizerPlan::Sgd {
    lr: 0.05,
    momentum: 0.9,
    dampening: 0.0,
    weight_decay: 0.0,
    nesterov: false,
    momentum_correction: true,
};

/// Points, all of them different.
pub fn points(count: usize) -> Vec<Point> {
    let value = |key: usize| ((key * 37 % 101) as f32 / 50.5) - 1.0;
    let point = |n: usize| ([value(3 * n), value(3 * n + 1), value(3 * n + 2)], value(7 * n + 5));
    (0..count).map(point).collect()
}

pub fn loader(points: Vec<Point>, batch_size: usize) -> Loader {
    let config = LoaderConfig { batch_size, shuffle: true, seed: 3, ..LoaderConfig::default() };
    DataLoader::new(Arc::new(InMemoryDataset::new(points)), Arc::new(Ok as Collate), config)
}

pub fn trainer(config: TrainerConfig, group: &ProcessGroup) -> Trainer {
    Trainer::new(config, group.clone())
}

/// A line through the points.
#[derive(Module, Debug)]
pub struct Line {
    pub linear: Linear,
}

/// A line behind a batch normalisation.
#[derive(Module, Debug)]
pub struct Normalized {
    pub norm: BatchNorm,
    pub linear: Linear,
}

fn linear(device: &Device) -> Linear {
    let weight = TensorData::new(vec![0.1f32, -0.2, 0.3], [FEATURES, 1]);
    let bias = TensorData::new(vec![0.05f32], [1]);
    Linear {
        weight: Param::from_tensor(Tensor::from_data(weight, device)),
        bias: Some(Param::from_tensor(Tensor::from_data(bias, device))),
    }
}

pub fn line() -> Line {
    Line { linear: linear(&Device::flex().autodiff()) }
}

pub fn normalized() -> Normalized {
    let device = Device::flex().autodiff();
    let norm = BatchNormConfig::new(FEATURES).init(&device);
    Normalized { norm, linear: linear(&device) }
}

fn features(batch: &[Point], device: &Device) -> Tensor<2> {
    let values: Vec<f32> = batch.iter().flat_map(|point| point.0).collect();
    Tensor::from_data(TensorData::new(values, [batch.len(), FEATURES]), device)
}

/// Mean squared error, and how many points there were.
fn error(predicted: Tensor<2>, batch: &[Point], device: &Device) -> StepOutput {
    let count = batch.len();
    let wanted: Vec<f32> = batch.iter().map(|point| point.1).collect();
    let wanted = Tensor::<2>::from_data(TensorData::new(wanted, [count, 1]), device);
    let difference = predicted - wanted;
    let seen = Tensor::full([1], count as f32, device);
    StepOutput::mean((difference.clone() * difference).mean(), count).with_metric("seen", seen, 1.0)
}

impl Learnable for Line {
    type Batch = Vec<Point>;

    fn training_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        let x = context.input(features(&batch, &context.device));
        let predicted = self.linear.forward(x).cast(DType::F32);
        error(predicted, &batch, &context.device)
    }

    fn validation_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        self.training_step(batch, context)
    }
}

impl Learnable for Normalized {
    type Batch = Vec<Point>;

    fn training_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        let x = self.norm.forward(features(&batch, &context.device));
        error(self.linear.forward(x), &batch, &context.device)
    }

    fn validation_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        self.training_step(batch, context)
    }
}

/// The numbers of a tensor.
pub fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.clone().without_autodiff().into_data().try_to_vec().unwrap()
}

/// The parameters of a line.
pub fn parameters(line: &Line) -> Vec<f32> {
    let bias = line.linear.bias.as_ref().unwrap();
    [numbers(&line.linear.weight.val()), numbers(&bias.val())].concat()
}
