//! Statistics on devices whose memory is not the host's.

use super::BatchStatistics;
use super::moments::{Moment, Moments, enough};
use crate::TensorError;
use crate::host::to_host;
use bonfire_comm::HostBuffer;
use burn::tensor::{Shape, Tensor};

/// Mean and variance on the device, which is not waited for.
pub(super) fn statistics<const D: usize>(input: Tensor<D>) -> Result<BatchStatistics, TensorError> {
    let (channels, count) = by_channel(input);
    enough(count)?;
    let [num_channels, _] = channels.dims();
    let mean = channels.clone().mean_dim(1);
    let variance = (channels - mean.clone()).square().mean_dim(1);
    let (mean, variance) = (mean.reshape([num_channels]), variance.reshape([num_channels]));
    Ok(BatchStatistics { mean, variance, count })
}

/// Moments of every channel, in host memory.
pub(super) fn moments<const D: usize>(input: Tensor<D>) -> Result<Moments, TensorError> {
    let (channels, count) = by_channel(input);
    let [num_channels, _] = channels.dims();
    if count == 0 {
        return Ok(Moments(vec![Moment::default(); num_channels]));
    }
    let mean = channels.clone().mean_dim(1);
    let squares = (channels - mean.clone()).square().sum_dim(1);
    let values = match to_host(Tensor::cat(vec![mean, squares], 1))? {
        HostBuffer::F64(values) => values,
        HostBuffer::F32(values) => values.into_iter().map(f64::from).collect(),
        _ => Vec::new(),
    };
    let moment = |pair: &[f64]| Moment { count: count as f64, mean: pair[0], squares: pair[1] };
    Ok(Moments(values.chunks_exact(2).map(moment).collect()))
}

/// A row for each channel, and how long it is.
fn by_channel<const D: usize>(input: Tensor<D>) -> (Tensor<2>, usize) {
    let dims = input.dims();
    let count = dims[0] * dims[2..].iter().product::<usize>();
    (input.swap_dims(0, 1).reshape(Shape::new([dims[1], count])), count)
}
