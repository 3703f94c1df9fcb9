//! Tensors that may be used together: with autodiff, and one strategy of gradient checkpointing.

use burn::tensor::Tensor;

/// Makes a tensor one that operations take together with `like`: with autodiff and the same strategy
/// of gradient checkpointing, or without; a gradient never flows through it.
pub fn with_autodiff_of<const D: usize, const E: usize>(
    like: &Tensor<D>,
    tensor: Tensor<E>,
) -> Tensor<E> {
    let tensor = tensor.without_autodiff();
    if !like.device().is_autodiff() {
        return tensor;
    }
    match like.gradient_checkpointing_strategy() {
        Some(strategy) => tensor.autodiff().with_gradient_checkpointing_strategy(strategy),
        None => tensor.autodiff(),
    }
}
