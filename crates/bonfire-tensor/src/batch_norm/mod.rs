//! Batch normalisation over the ranks of a group, as one differentiable operation.
//!
//! A training step takes [`batch_statistics`] and gives them to [`normalize`]. Both know the group
//! whose ranks share a batch, or none where a rank has its batch to itself.

#[cfg(any(test, feature = "cuda"))]
mod composed;
mod device;
mod host;
mod moments;
mod step;

pub(crate) use step::{Kept, Kernels, Normalization, NormalizeStep, Tensors, forward};

use crate::TensorError;
use crate::autodiff::with_autodiff_of;
use crate::extension::dispatch_normalize;
use crate::lend::is_apart;
use bonfire_comm::ProcessGroup;
use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

/// Mean and variance of every channel over a batch: that of all ranks where it was taken over a
/// group.
///
/// The tensors are without autodiff, of type f64 on the CPU and of [`statistics_type`] elsewhere.
#[derive(Debug, Clone)]
pub struct BatchStatistics {
    /// Shape `[channels]`.
    pub mean: Tensor<1>,
    /// Mean squared distance from the mean: divided by `count`. Shape `[channels]`.
    pub variance: Tensor<1>,
    /// Values of every channel.
    pub count: Count,
}

/// How many values every channel of a batch has over all ranks.
#[derive(Debug, Clone)]
pub enum Count {
    /// So many.
    Known(usize),
    /// As many as this tensor, of shape `[1]`, says: the devices of the ranks have told each other, and
    /// no host has heard of it.
    Apart(Box<Tensor<1>>),
}

impl BatchStatistics {
    fn cast(self, dtype: DType) -> Self {
        let (mean, variance) = (self.mean.cast(dtype), self.variance.cast(dtype));
        Self { mean, variance, count: self.count }
    }

    /// Estimates the variance of what the batch was drawn from: divided by `count - 1`.
    pub fn unbiased_variance(&self) -> Tensor<1> {
        match &self.count {
            Count::Known(count) => {
                let count = *count as f64;
                self.variance.clone().mul_scalar(count / (count - 1.0))
            }
            Count::Apart(count) => {
                let count = count.as_ref().clone();
                let factor = count.clone() / count.sub_scalar(1.0);
                self.variance.clone() * factor.cast(self.variance.dtype())
            }
        }
    }
}

/// Returns the type in which inputs of type `dtype` are normalised: f64 for f64, else f32.
pub fn statistics_type(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Computes mean and variance of every channel of a batch.
///
/// Every rank computes the mean of its own values and their squared distances from it. These are
/// merged in the order of the ranks, weighted by counts: all ranks get the same bits, and large
/// sums are never subtracted from each other.
///
/// # Shapes
/// - input `[batch, channels, ...]`; a rank's batch may be empty
///
/// # Collective
/// One all-gather of `1 + 2 * channels` values by all ranks of `group`, whose batches may differ in
/// size; none without a group or with a group of one rank. On devices no host waits for it.
///
/// # Errors
/// [`TensorError::TooFewValues`] on every rank when a channel has less than two values over all of
/// them, which on devices nobody finds out; [`TensorError::Comm`] when the collective fails.
///
/// # Reference
/// Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
/// Variances", 1979, section 2.
pub fn batch_statistics<const D: usize>(
    input: Tensor<D>,
    group: Option<&ProcessGroup>,
) -> Result<BatchStatistics, TensorError> {
    let input = input.without_autodiff();
    let device = input.device();
    let wide = statistics_type(input.dtype());
    let group = group.filter(|group| group.world_size() > 1);
    let primitive = input.clone().try_into_primitive::<Flex>();
    match (primitive, group) {
        (primitive, Some(group)) if primitive.is_err() || is_apart(&device) => {
            let statistics = device::statistics_over(input.cast(wide), group)?;
            Ok(match primitive {
                Ok(_) => statistics.cast(DType::F64),
                Err(_) => statistics,
            })
        }
        (Ok(primitive), group) => {
            let moments = host::moments(primitive, wide);
            moments.gather(group)?.into_statistics(&device, DType::F64)
        }
        (Err(_), _) => device::statistics(input.cast(wide)),
    }
}

/// Normalises a batch by its own statistics, differentiably.
///
/// `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta`. The gradient of the input takes into
/// account that the statistics depend on every rank's input. Those of `gamma` and `beta` are of
/// this rank's output alone, as those of all other parameters are.
///
/// # Shapes
/// - input `[batch, channels, ...]`, the same out as in; of any float type, as the output
/// - gamma, beta `[channels]`
///
/// # Collective
/// The backward pass runs one all-reduce of `2 * channels` values over `group` if the input needs a
/// gradient; it fails as that of [`all_reduce`](crate::collective::all_reduce).
///
/// # Reference
/// Ioffe and Szegedy, "Batch Normalization", 2015, section 3; the gradients are those of
/// `torch.nn.SyncBatchNorm`.
pub fn normalize<const D: usize>(
    input: Tensor<D>,
    parameters: [Tensor<1>; 2],
    statistics: &BatchStatistics,
    epsilon: f64,
    group: Option<&ProcessGroup>,
) -> Tensor<D> {
    let [gamma, beta] = parameters;
    let group = group.filter(|group| group.world_size() > 1).cloned();
    let normalization = Normalization::new(statistics.count.clone(), epsilon, group);
    let mean = with_autodiff_of(&input, statistics.mean.clone());
    let variance = with_autodiff_of(&input, statistics.variance.clone());
    let [gamma, beta, mean, variance] = [gamma, beta, mean, variance].map(Tensor::into_dispatch);
    let tensors = [input.into_dispatch(), gamma, beta, mean, variance];
    Tensor::from_dispatch(dispatch_normalize(tensors, normalization))
}
