//! Arithmetic that stays in f32 when a model runs in 16 bits.

use burn::tensor::{DType, Tensor, activation};

/// Runs a function in f32 when its input has 16 bits, and gives the result back in the input's type;
/// inputs of 32 and 64 bits go through as they are.
///
/// For what mixed precision must not do in 16 bits: sums over many elements, exponentials, norms. A
/// layer of Burn that normalises goes with
/// `MixedPrecision::keep_module`, which leaves its parameters in f32:
///
/// ```
/// use bonfire_nn::in_f32;
/// use burn::nn::LayerNorm;
/// use burn::tensor::Tensor;
///
/// fn normalize(norm: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
///     in_f32(x, |x| norm.forward(x))
/// }
/// ```
pub fn in_f32<const D: usize, const E: usize>(
    input: Tensor<D>,
    f: impl FnOnce(Tensor<D>) -> Tensor<E>,
) -> Tensor<E> {
    let dtype = input.dtype();
    f(widened(input)).cast(dtype)
}

/// The input in f32 at least.
pub(crate) fn widened<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    match input.dtype() {
        DType::F16 | DType::BF16 => input.cast(DType::F32),
        _ => input,
    }
}

/// Softmax over a dimension, computed in f32 when the input has 16 bits.
///
/// # Shapes
/// Any, the same out as in.
///
/// # Reference
/// `torch.softmax`, which `torch.autocast` runs in f32.
pub fn softmax<const D: usize>(input: Tensor<D>, dim: usize) -> Tensor<D> {
    in_f32(input, |input| activation::softmax(input, dim))
}

/// Logarithm of the softmax over a dimension, computed in f32 when the input has 16 bits.
///
/// # Shapes
/// Any, the same out as in.
///
/// # Reference
/// `torch.log_softmax`, which `torch.autocast` runs in f32.
pub fn log_softmax<const D: usize>(input: Tensor<D>, dim: usize) -> Tensor<D> {
    in_f32(input, |input| activation::log_softmax(input, dim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn sixteen_bit_inputs_are_computed_in_f32() {
        let device = Device::flex();
        // In bf16 the sum of the exponentials would stop growing at 256.
        let values = Tensor::<1>::zeros([1000], &device);
        for dtype in [DType::BF16, DType::F16, DType::F32] {
            let input = values.clone().cast(dtype).reshape([1, 1000]);
            let seen = in_f32(input.clone(), |x| {
                assert_eq!(x.dtype(), DType::F32);
                x
            });
            assert_eq!(seen.dtype(), dtype);
            let share: f32 = softmax(input, 1).slice([0..1, 0..1]).into_scalar();
            assert!((share - 1e-3).abs() < 1e-5, "{dtype:?}: {share}");
        }
    }
}
