//! Collectives on tensors.

use crate::TensorError;
use crate::extension::dispatch_collective;
use crate::host::{HostFloat, HostTensorMut};
#[cfg(any(feature = "cuda", feature = "testing"))]
use bonfire_comm::Operation;
use bonfire_comm::{CommError, ProcessGroup, ReduceOp};
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Tensor};
use std::sync::{Arc, Mutex};

/// Reduces a tensor over the ranks of a group, differentiably.
///
/// With `op` [`Sum`](ReduceOp::Sum) or [`Mean`](ReduceOp::Mean); since every rank's output depends
/// on every rank's input, the backward step reduces the gradients in the same way.
///
/// # Collective
/// Every rank of the group calls it with the same shape and type, in the same order among the
/// group's operations, and runs the backward pass through it. Give a module a
/// [`duplicate`](ProcessGroup::duplicate) of its own.
///
/// # Errors
/// [`TensorError::Comm`] when the collective fails. A failure in the backward pass aborts the
/// group, so that the next operation on it returns the cause.
///
/// # Reference
/// `torch.distributed.nn.functional.all_reduce`.
pub fn all_reduce<const D: usize>(
    tensor: Tensor<D>,
    group: &ProcessGroup,
    op: ReduceOp,
) -> Result<Tensor<D>, TensorError> {
    if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        return Err(TensorError::NotDifferentiable { op });
    }
    crate::host::wire_type(tensor.dtype(), "a tensor to reduce")?;
    if group.world_size() == 1 {
        return Ok(tensor);
    }
    let failure = Arc::new(Mutex::new(None));
    let collective = TensorCollective { group: group.clone(), op, failure: failure.clone() };
    let output = dispatch_collective(tensor.into_dispatch(), collective);
    let failed = failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    match failed {
        Some(error) => Err(TensorError::Comm(error)),
        None => Ok(Tensor::from_dispatch(output)),
    }
}

/// What the collective operation carries through the graph.
#[derive(Clone)]
pub(crate) struct TensorCollective {
    group: ProcessGroup,
    op: ReduceOp,
    failure: Arc<Mutex<Option<CommError>>>,
}

impl core::fmt::Debug for TensorCollective {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "all_reduce({:?}) on \"{}\"", self.op, self.group.name())
    }
}

impl TensorCollective {
    /// A sum over the ranks of a group, whose failure aborts the group.
    pub(crate) fn sum(group: ProcessGroup) -> Self {
        Self { group, op: ReduceOp::Sum, failure: Arc::default() }
    }

    /// The collective of the backward step: sums and means are their own adjoints.
    pub(crate) fn adjoint(&self) -> Self {
        self.clone()
    }

    pub(crate) fn run_flex(&self, tensor: FloatTensor<Flex>) -> FloatTensor<Flex> {
        let layout = tensor.layout().clone();
        let len = layout.num_elements();
        let flat = tensor.to_contiguous().reshape(burn::tensor::Shape::new([len]));
        drop(tensor);
        let shape = layout.shape().clone();
        #[cfg(feature = "testing")]
        if crate::lend::pretend::is_apart() {
            let reduced = self.run_apart(Tensor::from_primitive::<Flex>(flat.clone()));
            return reduced.try_into_primitive::<Flex>().unwrap_or(flat).reshape(shape);
        }
        let reduced = match flat.dtype() {
            DType::F64 => self.reduce::<f64>(flat),
            DType::F16 => self.reduce::<half::f16>(flat),
            DType::BF16 => self.reduce::<half::bf16>(flat),
            _ => self.reduce::<f32>(flat),
        };
        reduced.reshape(shape)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn run_cube(
        &self,
        tensor: FloatTensor<burn_cubecl::Cube>,
    ) -> FloatTensor<burn_cubecl::Cube> {
        use burn::backend::TensorMetadata;
        use burn::backend::ops::FloatTensorOps;
        use burn_cubecl::Cube;

        let shape = tensor.shape();
        let flat = burn::tensor::Shape::new([shape.num_elements()]);
        let flat = Tensor::<1>::from_primitive::<Cube>(Cube::float_reshape(tensor.clone(), flat));
        match self.run_apart(flat).try_into_primitive::<Cube>() {
            Ok(reduced) => Cube::float_reshape(reduced, shape),
            Err(error) => {
                self.group.abort(&format!("{error:?}"));
                tensor
            }
        }
    }

    /// Reduces a flat tensor on its device. It comes back as it was when that fails.
    #[cfg(any(feature = "cuda", feature = "testing"))]
    fn run_apart(&self, flat: Tensor<1>) -> Tensor<1> {
        let len = flat.dims()[0];
        // In memory of its own: others may hold the tensor, or parts of it.
        let spare = Tensor::<1>::zeros([1], (&flat.device(), flat.dtype()));
        let whole = Tensor::cat(vec![flat.clone(), spare], 0);
        let reduced = crate::lend::start(&self.group, Operation::AllReduce(self.op), whole)
            .and_then(crate::lend::Lent::finish);
        match reduced {
            Ok(whole) => whole.slice(0..len),
            Err(error) => {
                self.group.abort(&error.to_string());
                let error = match error {
                    TensorError::Comm(error) => error,
                    other => CommError::Internal { detail: other.to_string() },
                };
                *self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                    Some(error);
                flat
            }
        }
    }

    fn reduce<E: HostFloat>(&self, flat: FloatTensor<Flex>) -> FloatTensor<Flex> {
        let mut host = HostTensorMut::from_primitive(flat);
        if let Some(values) = host.slice_mut::<E>()
            && let Err(error) = self.group.all_reduce(values, self.op)
        {
            self.group.abort(&error.to_string());
            *self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
        }
        host.into_primitive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_comm::local;
    use burn::tensor::Device;

    /// Rank r has x = [r + 1, 1] and the loss sum(y * y) / 2 of y = reduced x.
    fn forward_and_backward(op: ReduceOp) -> Vec<(Vec<f32>, Vec<f32>)> {
        local::spawn(3, |group| {
            let device = Device::flex().autodiff();
            let first = group.rank() as f32 + 1.0;
            let x = Tensor::<2>::from_data([[first], [1.0]], &device).require_grad();
            let y = all_reduce(x.clone(), &group, op).unwrap();
            let mut gradients = (y.clone() * y.clone()).sum().div_scalar(2.0).backward();
            let gradient = x.grad_remove(&mut gradients).unwrap();
            let values = |t: Tensor<2>| t.inner().try_into_vec_as::<f32>().unwrap();
            (values(y), values(gradient))
        })
    }

    #[test]
    fn a_sum_and_its_gradient_go_over_all_ranks() {
        for (y, gradient) in forward_and_backward(ReduceOp::Sum) {
            assert_eq!(y, [6.0, 3.0]);
            // The loss of every rank depends on every x: 3 ranks, each with dL/dy = y.
            assert_eq!(gradient, [18.0, 9.0]);
        }
    }

    #[test]
    fn a_mean_and_its_gradient_go_over_all_ranks() {
        for (y, gradient) in forward_and_backward(ReduceOp::Mean) {
            assert_eq!(y, [2.0, 1.0]);
            assert_eq!(gradient, [2.0, 1.0]);
        }
    }

    #[test]
    fn a_maximum_has_no_derivative() {
        let x = Tensor::<1>::zeros([2], &Device::flex());
        let error = all_reduce(x, &ProcessGroup::single(), ReduceOp::Max).unwrap_err();
        assert!(error.to_string().contains("Max"), "{error}");
    }
}
