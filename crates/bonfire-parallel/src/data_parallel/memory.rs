//! How many bytes of model and optimizer this rank holds.

use super::DataParallel;
use crate::optimizer::FlatOptimizer;
use burn::module::Module;

/// Bytes that one rank holds from one step to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Trainable parameters.
    pub parameters: usize,
    /// Gradient buckets.
    pub gradients: usize,
    /// State of the optimizer.
    pub optimizer: usize,
}

impl<M: Module> DataParallel<M> {
    /// Counts the memory that parameters, gradient buckets and `optimizer` take on this rank.
    ///
    /// What a backward pass allocates on the way is not in it.
    pub fn memory(&self, optimizer: &dyn FlatOptimizer) -> MemoryUse {
        let bytes = |tensor: &burn::tensor::Tensor<1>| tensor.dims()[0] * tensor.dtype().size();
        let slots = (0..self.flat.len()).flat_map(|bucket| {
            let names = optimizer.slots(bucket);
            names.into_iter().filter_map(move |name| optimizer.slot(bucket, &name))
        });
        MemoryUse {
            parameters: self.flat.iter().map(bytes).sum(),
            gradients: self.reducer.gradient_bytes(),
            optimizer: slots.map(|slot| bytes(&slot)).sum(),
        }
    }
}
