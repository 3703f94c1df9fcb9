//! Statistics on devices whose memory is not the host's.

use super::moments::enough;
use super::{BatchStatistics, Count};
use crate::TensorError;
use crate::lend;
use bonfire_comm::{Operation, ProcessGroup};
use burn::tensor::{Shape, Tensor};

/// Mean and variance on the device, which is not waited for.
pub(super) fn statistics<const D: usize>(input: Tensor<D>) -> Result<BatchStatistics, TensorError> {
    let (channels, count) = by_channel(input);
    enough(count)?;
    let [num_channels, _] = channels.dims();
    let mean = channels.clone().mean_dim(1);
    let variance = (channels - mean.clone()).square().mean_dim(1);
    let (mean, variance) = (mean.reshape([num_channels]), variance.reshape([num_channels]));
    Ok(BatchStatistics { mean, variance, count: Count::Known(count) })
}

/// Mean and variance over the batches of all ranks of a group, on their devices.
///
/// # Collective
/// All ranks.
pub(super) fn statistics_over<const D: usize>(
    input: Tensor<D>,
    group: &ProcessGroup,
) -> Result<BatchStatistics, TensorError> {
    let (channels, own_count) = by_channel(input);
    let ([num_channels, _], ranks) = (channels.dims(), group.world_size());
    let row = 1 + 2 * num_channels;
    let zeros = |len: usize| Tensor::<1>::zeros([len], (&channels.device(), channels.dtype()));
    let own = match own_count {
        0 => zeros(row),
        count => {
            let mean = channels.clone().mean_dim(1);
            let squares = (channels.clone() - mean.clone()).square().sum_dim(1);
            let flat = |tensor: Tensor<2>| tensor.reshape([num_channels]);
            Tensor::cat(vec![zeros(1).add_scalar(count as f64), flat(mean), flat(squares)], 0)
        }
    };
    let start = group.rank() * row;
    let whole = zeros(ranks * row).slice_assign(start..start + row, own);
    let table = lend::start(group, Operation::AllGather, whole)?.finish()?.reshape([ranks, row]);

    let counts = table.clone().slice([0..ranks, 0..1]);
    let means = table.clone().slice([0..ranks, 1..1 + num_channels]);
    let squares = table.slice([0..ranks, 1 + num_channels..row]);
    let count = counts.clone().sum_dim(0);
    if own_count <= 1 {
        // Only then may it be the only one; a rank that has more need not ask.
        let total: f64 = count.clone().into_scalar::<f64>();
        enough(total as usize)?;
    }
    let mean = (means.clone() * counts.clone()).sum_dim(0) / count.clone();
    let between = ((means - mean.clone()).square() * counts).sum_dim(0);
    let variance = (squares.sum_dim(0) + between) / count.clone();
    let flat = |tensor: Tensor<2>| tensor.reshape([num_channels]);
    let count = Count::Apart(Box::new(count.reshape([1])));
    Ok(BatchStatistics { mean: flat(mean), variance: flat(variance), count })
}

/// A row for each channel, and how long it is.
fn by_channel<const D: usize>(input: Tensor<D>) -> (Tensor<2>, usize) {
    let dims = input.dims();
    let count = dims[0] * dims[2..].iter().product::<usize>();
    (input.swap_dims(0, 1).reshape(Shape::new([dims[1], count])), count)
}
