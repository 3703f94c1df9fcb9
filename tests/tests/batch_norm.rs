//! Batch normalisation has PyTorch's outputs, gradients and statistics, however the samples are dealt
//! out to ranks; `golden/batch_norm.py` says what the golden file holds.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, local};
use bonfire_nn::{SyncBatchNorm, SyncBatchNormConfig, connect_sync_batchnorm};
use burn::module::{Module, Param, RunningState};
use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors::SafeTensors;
use std::ops::Range;

const STEPS: usize = 2;
const SAMPLES: usize = 12;
/// How many of the samples each rank has.
const DEALINGS: [&[usize]; 7] =
    [&[12], &[6, 6], &[11, 1], &[0, 12], &[4, 4, 4], &[1, 0, 11], &[5, 7, 0]];
/// Types and the largest difference, relative to the largest number of a tensor.
const TYPES: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F64, 1e-12)];

#[test]
fn rank_2() {
    check::<2>(&Case::new("rank2"));
}

#[test]
fn rank_3() {
    check::<3>(&Case::new("rank3"));
}

#[test]
fn rank_4() {
    check::<4>(&Case::new("rank4"));
    check::<4>(&Case::new("rank4_narrow"));
}

#[test]
fn rank_5() {
    check::<5>(&Case::new("rank5"));
}

#[test]
fn channels_far_from_zero() {
    check::<4>(&Case::new("far_from_zero"));
}

#[test]
fn other_settings() {
    check::<4>(&Case { momentum: 0.3, epsilon: 1e-2, ..Case::new("settings") });
}

/// A case of the golden file, with the settings of its layer.
struct Case {
    name: &'static str,
    momentum: f64,
    epsilon: f64,
    golden: SafeTensors<'static>,
}

/// What a rank has computed.
#[derive(Default)]
struct Computed {
    /// By step: output, gradient of the input, those of gamma and beta, and both statistics.
    steps: Vec<[Vec<f64>; 6]>,
    evaluated: Vec<f64>,
}

fn check<const D: usize>(case: &Case) {
    for (dtype, tolerance) in TYPES {
        for counts in DEALINGS {
            let ranks = local::spawn(counts.len(), |group| case.run::<D>(&group, counts, dtype));
            case.compare(&ranks, tolerance, &format!("{dtype:?} {counts:?}"));
        }
    }
}

impl Case {
    fn new(name: &'static str) -> Self {
        let bytes = include_bytes!("../golden/batch_norm.safetensors");
        let golden = SafeTensors::deserialize(bytes).unwrap();
        Self { name, momentum: 0.1, epsilon: 1e-5, golden }
    }

    /// Takes the steps as the rank of a group that has its part of `counts`.
    fn run<const D: usize>(
        &self,
        group: &ProcessGroup,
        counts: &[usize],
        dtype: DType,
    ) -> Computed {
        let device = Device::flex().autodiff();
        let start: usize = counts[..group.rank()].iter().sum();
        let own = start..start + counts[group.rank()];
        let layer = connect_sync_batchnorm(self.layer(&device, dtype), group).unwrap();
        let mut computed = Computed::default();
        for step in 0..STEPS {
            let part =
                |name| self.part::<D>(&format!("{name}/{step}"), own.clone(), &device, dtype);
            let x = part("x").require_grad();
            let y = layer.forward(x.clone());
            let gradients = (y.clone() * part("weights")).sum().backward();
            computed.steps.push([
                floats(y),
                floats(x.grad(&gradients).unwrap()),
                floats(layer.gamma.val().grad(&gradients).unwrap()),
                floats(layer.beta.val().grad(&gradients).unwrap()),
                floats(layer.running_mean.value_sync()),
                floats(layer.running_var.value_sync()),
            ]);
        }
        let device = Device::flex();
        let x = self.part::<D>(&format!("x/{}", STEPS - 1), own, &device, dtype);
        computed.evaluated = floats(layer.valid().forward(x));
        computed
    }

    fn layer(&self, device: &Device, dtype: DType) -> SyncBatchNorm {
        let tensor = |name: &str| {
            let values = self.values(name);
            let shape = [values.len()];
            Tensor::<1>::from_data(TensorData::new(values, shape), (device, dtype))
        };
        let mut layer = SyncBatchNormConfig::new(self.values("gamma").len())
            .with_momentum(self.momentum)
            .with_epsilon(self.epsilon)
            .init(device);
        layer.gamma = Param::from_tensor(tensor("gamma"));
        layer.beta = Param::from_tensor(tensor("beta"));
        layer.running_mean = RunningState::new(tensor("running_mean"));
        layer.running_var = RunningState::new(tensor("running_var"));
        layer
    }

    /// Some samples of a batch.
    fn part<const D: usize>(
        &self,
        name: &str,
        samples: Range<usize>,
        device: &Device,
        dtype: DType,
    ) -> Tensor<D> {
        let mut shape = self.shape(name);
        let row: usize = shape[1..].iter().product();
        shape[0] = samples.len();
        let values = self.values(name)[samples.start * row..samples.end * row].to_vec();
        Tensor::from_data(TensorData::new(values, shape), (device, dtype))
    }

    /// Outputs of the ranks behind each other are PyTorch's of the whole batch, statistics are the same
    /// on every rank, and gradients of parameters add up.
    fn compare(&self, ranks: &[Computed], tolerance: f64, what: &str) {
        let close = |name: &str, got: &[f64]| {
            let expected = self.values(name);
            assert_eq!(got.len(), expected.len(), "{name} of {what}");
            let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert!(
                    (got - expected).abs() <= tolerance * largest,
                    "{}/{name}[{index}] of {what} is {got:e}, expected {expected:e}",
                    self.name
                );
            }
        };
        for step in 0..STEPS {
            let of = |part: usize| ranks.iter().map(move |rank| rank.steps[step][part].as_slice());
            let name = |name: &str| format!("{name}/{step}");
            close(&name("y"), &of(0).collect::<Vec<_>>().concat());
            close(&name("dx"), &of(1).collect::<Vec<_>>().concat());
            for (part, gradient) in [(2, "dgamma"), (3, "dbeta")] {
                let mut sum = vec![0.0; self.values("gamma").len()];
                for rank in of(part) {
                    sum.iter_mut().zip(rank).for_each(|(sum, value)| *sum += value);
                }
                close(&name(gradient), &sum);
            }
            for (part, statistic) in [(4, "running_mean"), (5, "running_var")] {
                of(part).for_each(|rank| close(&name(statistic), rank));
                assert!(of(part).all(|rank| Some(rank) == of(part).next()), "bits of {what}");
            }
        }
        let evaluated: Vec<&[f64]> = ranks.iter().map(|rank| rank.evaluated.as_slice()).collect();
        close("evaluated", &evaluated.concat());
    }

    fn shape(&self, name: &str) -> Vec<usize> {
        let shape = self.golden.tensor(&format!("{}/{name}", self.name)).unwrap().shape().to_vec();
        assert_eq!(shape[0], SAMPLES);
        shape
    }

    fn values(&self, name: &str) -> Vec<f64> {
        let view = self.golden.tensor(&format!("{}/{name}", self.name)).unwrap();
        let words = view.data().chunks_exact(8);
        words.map(|word| f64::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}
