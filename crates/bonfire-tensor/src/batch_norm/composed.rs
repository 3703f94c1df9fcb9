//! The kernels in terms of a backend's own operations, for devices whose memory is not the host's.

use super::step::Saved;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Scalar, Shape};

pub(super) fn normalize<B: Backend>(saved: Saved<B>, beta: FloatTensor<B>) -> FloatTensor<B> {
    let Saved { input, gamma, mean, variance, epsilon } = saved;
    B::batch_norm(input, gamma, beta, mean, variance, epsilon)
}

pub(super) fn gradient_sums<B: Backend>(
    saved: &Saved<B>,
    output_gradient: &FloatTensor<B>,
) -> FloatTensor<B> {
    let shape = saved.input.shape();
    let (rank, channels) = (shape.num_dims(), shape[1]);
    let flat = Shape::new([channels, shape.num_elements() / channels]);
    let by_channel = |tensor| {
        B::float_sum_dim(B::float_reshape(B::float_swap_dims(tensor, 0, 1), flat.clone()), 1)
    };
    let mean = along_channels::<B>(saved.mean.clone(), rank);
    let product = B::float_mul(output_gradient.clone(), B::float_sub(saved.input.clone(), mean));
    let sums = vec![by_channel(output_gradient.clone()), by_channel(product)];
    B::float_reshape(B::float_cat(sums, 0), Shape::new([2 * channels]))
}

/// See the kernel of the CPU for the formula.
pub(super) fn input_gradient<B: Backend>(
    saved: Saved<B>,
    output_gradient: FloatTensor<B>,
    sums: FloatTensor<B>,
    count: usize,
) -> FloatTensor<B> {
    let shape = saved.input.shape();
    let (rank, channels) = (shape.num_dims(), shape[1]);
    let means = B::float_div_scalar(sums, Scalar::Float(count as f64));
    let part = |range: std::ops::Range<usize>| B::float_slice(means.clone(), &[range.into()]);
    let squared = B::float_recip(B::float_add_scalar(saved.variance, Scalar::Float(saved.epsilon)));
    let scale = B::float_mul(saved.gamma, B::float_sqrt(squared.clone()));
    let slope = B::float_mul(squared, part(channels..2 * channels));
    let distance = B::float_sub(saved.input, along_channels::<B>(saved.mean, rank));
    let projected = B::float_mul(distance, along_channels::<B>(slope, rank));
    let centred = B::float_sub(output_gradient, along_channels::<B>(part(0..channels), rank));
    B::float_mul(B::float_sub(centred, projected), along_channels::<B>(scale, rank))
}

/// Shapes `[channels]` so that it broadcasts over a batch of `rank` dimensions.
fn along_channels<B: Backend>(tensor: FloatTensor<B>, rank: usize) -> FloatTensor<B> {
    let mut shape = vec![1; rank];
    shape[1] = tensor.shape().num_elements();
    B::float_reshape(tensor, Shape::from(shape))
}
