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

#[cfg(test)]
mod tests {
    use super::super::{Count, device, host};
    use super::*;
    use burn::backend::Flex;
    use burn::tensor::{DType, Device, Tensor, TensorData};

    const CHANNELS: usize = 3;

    /// A tensor of numbers between -1 and 1 that look like none in particular.
    fn tensor<const D: usize>(shape: [usize; D], seed: f64, dtype: DType) -> Tensor<D> {
        let value = |index: usize| (12.9898 * index as f64 + seed).sin();
        let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
        Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), dtype))
    }

    fn primitive<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Flex> {
        tensor.try_into_primitive::<Flex>().unwrap()
    }

    fn assert_near(got: FloatTensor<Flex>, expected: FloatTensor<Flex>, tolerance: f64) {
        let [got, expected] = [got, expected].map(|tensor| {
            let data = tensor.into_data();
            (data.shape().clone(), data.iter::<f64>().collect::<Vec<f64>>())
        });
        assert_eq!(got.0, expected.0);
        for (got, expected) in got.1.iter().zip(&expected.1) {
            assert!((got - expected).abs() <= tolerance, "{got} {expected}");
        }
    }

    /// The kernels of the CPU against the backend's own operations.
    fn check<const D: usize>(shape: [usize; D], dtype: DType, tolerance: f64) {
        let x = tensor(shape, 0.3, dtype) + 2.0;
        let dy = primitive(tensor(shape, 0.8, dtype));
        let statistics = device::statistics(x.clone()).unwrap();
        let Count::Known(count) = statistics.count else { panic!("no count") };
        let values = |tensor: &Tensor<1>| -> Vec<f64> { tensor.to_data().iter::<f64>().collect() };
        let (means, variances) = (values(&statistics.mean), values(&statistics.variance));
        let moments = host::moments(primitive(x.clone()), dtype);
        for ((got, mean), variance) in moments.0.iter().zip(means).zip(variances) {
            assert_eq!(got.count, count as f64);
            assert!((got.mean - mean).abs() <= tolerance, "{got:?} {mean}");
            let near = (got.squares / got.count - variance).abs() <= tolerance;
            assert!(near, "{got:?} {variance}");
        }

        let saved = Saved::<Flex> {
            input: primitive(x),
            gamma: primitive(tensor([CHANNELS], 0.1, dtype)),
            mean: primitive(statistics.mean),
            variance: primitive(statistics.variance),
            epsilon: 1e-5,
        };
        let beta = primitive(tensor([CHANNELS], 0.2, dtype));
        let got = host::normalize(saved.clone(), beta.clone());
        assert_near(got, normalize(saved.clone(), beta), tolerance);

        let sums = gradient_sums(&saved, &dy);
        let host_sums = host::gradient_sums(&saved, &dy);
        assert_near(host_sums.clone(), sums.clone(), tolerance * count as f64);
        let got = host::input_gradient(saved.clone(), dy.clone(), host_sums, count);
        assert_near(got, input_gradient(saved, dy, sums, count), tolerance);
    }

    #[test]
    fn both_kinds_of_kernels_agree() {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-13)] {
            check([40, CHANNELS], dtype, tolerance);
            check([5, CHANNELS, 4], dtype, tolerance);
            check([2, CHANNELS, 5, 7], dtype, tolerance);
            // More than one block of a channel, and more than one thread.
            check([3, CHANNELS, 97, 91], dtype, tolerance);
            check([2, CHANNELS, 3, 4, 5], dtype, tolerance);
        }
    }
}
