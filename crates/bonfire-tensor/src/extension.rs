//! The operations that Burn lacks, as one backend extension.
//!
//! But for the collective and the normalisation of a batch, every one is the identity in the forward
//! pass, and exists for what it does in the backward pass.

use crate::batch_norm::{self, Kept, Kernels, Normalization, NormalizeStep, Tensors};
use crate::collective::TensorCollective;
use crate::hook::{Gradient, Hook};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor,
    DispatchTensorKind, Flex, backend_extension,
};
use burn::tensor::Tensor;
#[cfg(feature = "cuda")]
use burn_cubecl::Cube;

/// Operations of Bonfire on a backend.
#[backend_extension(Cube: cfg(feature = "cuda"), Flex, Autodiff)]
pub(crate) trait BonfireOps: Backend {
    /// Identity; its backward step hands the gradient of `parameter` to `hook`.
    ///
    /// `anchor` is an untracked tensor of one element whose depth in the graph decides *when* that
    /// step runs: Burn runs the deepest steps first.
    fn gradient_hook(
        parameter: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        hook: Hook,
    ) -> FloatTensor<Self>;

    /// Identity that is one level deeper in the graph than its input.
    fn deepen(tensor: FloatTensor<Self>) -> FloatTensor<Self>;

    /// A collective on a tensor, whose backward step is the collective's adjoint.
    fn collective(tensor: FloatTensor<Self>, collective: TensorCollective) -> FloatTensor<Self>;

    /// Normalises a batch by its own mean and variance; the backward step knows what they depend on.
    fn normalize(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        normalization: Normalization,
    ) -> FloatTensor<Self>;
}

/// Wraps a backend's primitive as a dispatch tensor without autodiff.
pub(crate) trait IntoDispatch: Backend {
    fn into_dispatch(tensor: FloatTensor<Self>) -> DispatchTensor;

    /// The reverse; `None` for a tensor of another backend.
    fn primitive_of(tensor: Tensor<1>) -> Option<FloatTensor<Self>>;
}

impl IntoDispatch for Flex {
    fn into_dispatch(tensor: FloatTensor<Self>) -> DispatchTensor {
        DispatchTensor {
            kind: DispatchTensorKind::Flex(BackendTensor::Float(tensor)),
            autodiff: DispatchAutodiffContext::Disabled,
        }
    }

    fn primitive_of(tensor: Tensor<1>) -> Option<FloatTensor<Self>> {
        tensor.try_into_primitive::<Self>().ok()
    }
}

#[cfg(feature = "cuda")]
impl IntoDispatch for Cube {
    fn into_dispatch(tensor: FloatTensor<Self>) -> DispatchTensor {
        DispatchTensor {
            kind: DispatchTensorKind::Cube(BackendTensor::Float(tensor)),
            autodiff: DispatchAutodiffContext::Disabled,
        }
    }

    fn primitive_of(tensor: Tensor<1>) -> Option<FloatTensor<Self>> {
        tensor.try_into_primitive::<Self>().ok()
    }
}

impl BonfireOps for Flex {
    fn gradient_hook(
        parameter: FloatTensor<Self>,
        _anchor: FloatTensor<Self>,
        _hook: Hook,
    ) -> FloatTensor<Self> {
        parameter
    }

    fn deepen(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        tensor
    }

    fn collective(tensor: FloatTensor<Self>, collective: TensorCollective) -> FloatTensor<Self> {
        collective.run_flex(tensor)
    }

    fn normalize(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        normalization: Normalization,
    ) -> FloatTensor<Self> {
        batch_norm::forward::<Self>([input, gamma, beta, mean, variance], &normalization)
    }
}

#[cfg(feature = "cuda")]
impl BonfireOps for Cube {
    fn gradient_hook(
        parameter: FloatTensor<Self>,
        _anchor: FloatTensor<Self>,
        _hook: Hook,
    ) -> FloatTensor<Self> {
        parameter
    }

    fn deepen(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        tensor
    }

    fn collective(tensor: FloatTensor<Self>, collective: TensorCollective) -> FloatTensor<Self> {
        collective.run_cube(tensor)
    }

    fn normalize(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        normalization: Normalization,
    ) -> FloatTensor<Self> {
        batch_norm::forward::<Self>([input, gamma, beta, mean, variance], &normalization)
    }
}

#[derive(Debug)]
struct HookStep;

impl<B: IntoDispatch> Backward<B, 2> for HookStep {
    type State = Hook;

    // INVARIANT: the graph's lock is held here, so nothing below may call an autodiff operation.
    fn backward(self, ops: Ops<Hook, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        ops.state.fire(Gradient::new(B::into_dispatch(gradient)));
    }
}

#[derive(Debug)]
struct DeepenStep;

impl<B: Backend> Backward<B, 1> for DeepenStep {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, gradient);
        }
    }
}

#[derive(Debug)]
struct CollectiveStep;

impl<B: BonfireOps> Backward<B, 1> for CollectiveStep {
    type State = TensorCollective;

    fn backward(self, ops: Ops<TensorCollective, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, B::collective(gradient, ops.state.adjoint()));
        }
    }
}

impl<B: BonfireOps + IntoDispatch + Kernels, C: CheckpointStrategy> BonfireOps for Autodiff<B, C> {
    fn gradient_hook(
        parameter: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        hook: Hook,
    ) -> FloatTensor<Self> {
        let (parameter, guard) = parameter.into_parts();
        let (_, anchor) = anchor.into_parts();
        let step = Backward::<B, 2>::prepare::<C>(HookStep, [guard, anchor]);
        match step.compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(hook, parameter),
            OpsKind::UnTracked(prepared) => prepared.finish(parameter),
        }
    }

    fn deepen(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        let (tensor, guard) = tensor.into_parts();
        let step = Backward::<B, 1>::prepare::<C>(DeepenStep, [guard]);
        match step.compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((), tensor),
            OpsKind::UnTracked(prepared) => prepared.finish(tensor),
        }
    }

    fn collective(tensor: FloatTensor<Self>, collective: TensorCollective) -> FloatTensor<Self> {
        let (tensor, guard) = tensor.into_parts();
        let output = B::collective(tensor, collective.clone());
        let step = Backward::<B, 1>::prepare::<C>(CollectiveStep, [guard]);
        match step.compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(collective, output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }

    fn normalize(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        normalization: Normalization,
    ) -> FloatTensor<Self> {
        let nodes = [input.node(), gamma.node(), beta.node()];
        let (mean, variance) = (mean.into_primitive(), variance.into_primitive());
        let output = batch_norm::forward::<B>(
            [
                input.primitive().clone(),
                gamma.primitive().clone(),
                beta.into_primitive(),
                mean.clone(),
                variance.clone(),
            ],
            &normalization,
        );
        let step = Backward::<B, 3>::prepare::<C>(NormalizeStep, nodes);
        match step.compute_bound().stateful() {
            OpsKind::Tracked(mut prepared) => {
                let (input, gamma) = (prepared.checkpoint(&input), prepared.checkpoint(&gamma));
                prepared.finish(Kept { input, gamma, mean, variance, normalization }, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }
}

pub(crate) fn dispatch_gradient_hook(
    parameter: DispatchTensor,
    anchor: DispatchTensor,
    hook: Hook,
) -> DispatchTensor {
    <Dispatch as BonfireOps>::gradient_hook(parameter, anchor, hook)
}

pub(crate) fn dispatch_deepen(tensor: DispatchTensor) -> DispatchTensor {
    <Dispatch as BonfireOps>::deepen(tensor)
}

pub(crate) fn dispatch_collective(
    tensor: DispatchTensor,
    collective: TensorCollective,
) -> DispatchTensor {
    <Dispatch as BonfireOps>::collective(tensor, collective)
}

pub(crate) fn dispatch_normalize(
    tensors: Tensors<DispatchTensor>,
    normalization: Normalization,
) -> DispatchTensor {
    let [input, gamma, beta, mean, variance] = tensors;
    <Dispatch as BonfireOps>::normalize(input, gamma, beta, mean, variance, normalization)
}
