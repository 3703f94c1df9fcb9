//! A perceptron in data-parallel training, as most tests need it.

use crate::samples::{CLASSES, IMAGE, Samples};
use bonfire_comm::{HostBuffer, ProcessGroup, ReduceOp};
use bonfire_models::{Mlp, MlpConfig};
use bonfire_nn::{ImageClassifier, cross_entropy};
use bonfire_parallel::{
    AdamConfig, AdamWConfig, DataParallel, DataParallelConfig, FlatOptimizer, ParallelError,
    SgdConfig,
};
use bonfire_tensor::parameters;
use bonfire_tensor::state::State;
use burn::tensor::{Device, FloatDType};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Width of the perceptron's hidden layer, that of `golden/generate.py` too.
pub const HIDDEN: usize = 16;

/// Element type of parameters, activations and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Single.
    F32,
    /// Double.
    F64,
}

impl Precision {
    /// `f32` or `f64`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// The CPU with autodiff, where new tensors have this precision.
    ///
    /// # Panics
    /// When this process has used the CPU before: the default is the process's.
    pub fn device(self) -> Device {
        let float = match self {
            Self::F32 => FloatDType::F32,
            Self::F64 => FloatDType::F64,
        };
        let mut device = Device::flex();
        device.configure(float).unwrap();
        device.autodiff()
    }
}

/// An optimizer with its settings, those of `golden/generate.py`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// SGD with momentum and weight decay.
    Sgd,
    /// The same with Nesterov momentum.
    Nesterov,
    /// Adam with weight decay.
    Adam,
    /// AdamW with PyTorch's defaults.
    AdamW,
}

impl Rule {
    /// Its name in the golden files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Nesterov => "nesterov",
            Self::Adam => "adam",
            Self::AdamW => "adamw",
        }
    }

    /// Its learning rate.
    pub fn learning_rate(self) -> f64 {
        match self {
            Self::Sgd | Self::Nesterov => 0.1,
            Self::Adam | Self::AdamW => 1e-2,
        }
    }

    /// Makes the optimizer.
    pub fn optimizer(self) -> Box<dyn FlatOptimizer> {
        let sgd = SgdConfig::new().with_momentum(0.9).with_weight_decay(1e-3);
        match self {
            Self::Sgd => Box::new(sgd.init().unwrap()),
            Self::Nesterov => Box::new(sgd.with_nesterov(true).init().unwrap()),
            Self::Adam => Box::new(AdamConfig::new().with_weight_decay(1e-3).init().unwrap()),
            Self::AdamW => Box::new(AdamWConfig::new().init().unwrap()),
        }
    }

    /// Relative difference allowed between the losses of two runs that differ in rounding only.
    pub fn tolerance(self, precision: Precision) -> f64 {
        match (precision, self) {
            (Precision::F64, _) => 1e-9,
            (Precision::F32, Self::Sgd | Self::Nesterov) => 1e-4,
            (Precision::F32, Self::Adam | Self::AdamW) => 1e-3,
        }
    }
}

/// Number of leading steps whose losses are comparable, of `steps`: in single precision rounding
/// adds up.
pub fn comparable_steps(precision: Precision, steps: usize) -> usize {
    match precision {
        Precision::F32 => steps.min(20),
        Precision::F64 => steps,
    }
}

/// Settings with buckets so small that even a small model has several.
pub fn small_buckets() -> DataParallelConfig {
    DataParallelConfig {
        first_bucket_mb: 0.0005,
        bucket_cap_mb: 0.002,
        ..DataParallelConfig::default()
    }
}

/// A perceptron with one hidden layer; its weights come from `seed`, also where ranks are threads,
/// which share one random generator.
///
/// # Panics
/// Never, for the layers that it has.
pub fn mlp(hidden: usize, seed: u64, device: &Device) -> Mlp {
    static GENERATOR: Mutex<()> = Mutex::new(());
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(seed);
    let model = MlpConfig { hidden: vec![hidden] }.init(IMAGE, CLASSES, device).unwrap();
    // Weights are drawn when they are first looked at.
    parameters::inspect(&model).unwrap();
    model
}

/// A training run of a perceptron.
pub struct Training<'a> {
    /// The model.
    pub parallel: DataParallel<Mlp>,
    group: &'a ProcessGroup,
    device: &'a Device,
    rule: Rule,
    optimizer: Box<dyn FlatOptimizer>,
    micro_batches: usize,
}

impl<'a> Training<'a> {
    /// Begins a run whose batches are cut into `micro_batches`.
    ///
    /// Every rank draws other weights, so that only the broadcast makes them equal.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn new(
        group: &'a ProcessGroup,
        device: &'a Device,
        rule: Rule,
        micro_batches: usize,
    ) -> Result<Self, ParallelError> {
        let model = mlp(HIDDEN, 7 + group.rank() as u64, device);
        let parallel = DataParallel::new(model, group, small_buckets())?;
        Ok(Self { parallel, group, device, rule, optimizer: rule.optimizer(), micro_batches })
    }

    /// Takes a step over a global batch, of which every rank computes an equal part, and returns
    /// its mean loss.
    ///
    /// # Errors
    /// Those of the group.
    pub fn step(&mut self, batch: &Samples) -> Result<f64, ParallelError> {
        let len = batch.len() / self.micro_batches;
        let scale = 1.0 / self.micro_batches as f64;
        let mut sum = 0.0;
        for index in 1..=self.micro_batches {
            let micro_batch = batch.slice((index - 1) * len..index * len);
            let part = micro_batch.slice(own_part(self.group, len));
            sum += if index < self.micro_batches {
                self.parallel.no_sync(|parallel| backward(parallel, &part, scale, self.device))?
            } else {
                backward(&mut self.parallel, &part, scale, self.device)?
            };
        }
        self.parallel.step(self.optimizer.as_mut(), self.rule.learning_rate())?;
        let mut sums = [sum];
        self.group.all_reduce(&mut sums, ReduceOp::Sum)?;
        Ok(sums[0] / batch.len() as f64)
    }
}

/// Runs samples forward and `scale` times their mean loss backward, and returns the sum of losses.
fn backward(
    parallel: &mut DataParallel<Mlp>,
    samples: &Samples,
    scale: f64,
    device: &Device,
) -> Result<f64, ParallelError> {
    let logits = parallel.replica()?.forward(samples.images(device));
    let loss = cross_entropy(logits, samples.targets(device));
    let mean: f64 = loss.clone().without_autodiff().into_scalar();
    parallel.backward(loss.mul_scalar(scale))?;
    Ok(mean * samples.len() as f64)
}

fn own_part(group: &ProcessGroup, len: usize) -> Range<usize> {
    let part = len / group.world_size();
    assert_eq!(part * group.world_size(), len, "a batch must divide by the number of ranks");
    group.rank() * part..(group.rank() + 1) * part
}

/// The numbers of all tensors of a state.
pub fn numbers(state: &State) -> BTreeMap<String, Vec<f64>> {
    let widen = |data: &HostBuffer| -> Vec<f64> {
        match data {
            HostBuffer::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            HostBuffer::F64(values) => values.clone(),
            other => panic!("a perceptron has no tensor of {}", other.dtype()),
        }
    };
    state.tensors.iter().map(|(name, tensor)| (name.clone(), widen(&tensor.data))).collect()
}
