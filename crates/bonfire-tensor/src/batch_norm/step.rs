//! The operation in the graph: what it keeps for its backward step, and what that does.

#[cfg(feature = "cuda")]
use super::composed;
use super::{Count, host, statistics_type};
use crate::collective::TensorCollective;
use crate::extension::{BonfireOps, IntoDispatch};
use bonfire_comm::ProcessGroup;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, TensorMetadata};
use burn::tensor::{DType, Scalar};

/// What the operation carries through the graph beside tensors.
#[derive(Debug, Clone)]
pub(crate) struct Normalization {
    count: Count,
    epsilon: f64,
    /// The ranks that share the batch, if there are others.
    group: Option<ProcessGroup>,
}

/// Tensors that forward and backward pass work with: input and parameters in one float type.
#[derive(Debug, Clone)]
pub(crate) struct Saved<B: Backend> {
    pub(super) input: FloatTensor<B>,
    pub(super) gamma: FloatTensor<B>,
    pub(super) mean: FloatTensor<B>,
    pub(super) variance: FloatTensor<B>,
    pub(super) epsilon: f64,
}

/// The arithmetic of the operation on a backend.
pub(crate) trait Kernels: Backend {
    /// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`
    fn normalize(saved: Saved<Self>, beta: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The sums of `dy` by channel, and behind them those of `dy * (x - mean)`.
    fn gradient_sums(saved: &Saved<Self>, output_gradient: &FloatTensor<Self>)
    -> FloatTensor<Self>;

    /// The gradient of the input, from the sums over the batch of all ranks.
    fn input_gradient(
        saved: Saved<Self>,
        output_gradient: FloatTensor<Self>,
        sums: FloatTensor<Self>,
        count: usize,
    ) -> FloatTensor<Self>;
}

macro_rules! kernels {
    ($backend:ty, $module:ident) => {
        impl Kernels for $backend {
            fn normalize(saved: Saved<Self>, beta: FloatTensor<Self>) -> FloatTensor<Self> {
                $module::normalize(saved, beta)
            }

            fn gradient_sums(
                saved: &Saved<Self>,
                output_gradient: &FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                $module::gradient_sums(saved, output_gradient)
            }

            fn input_gradient(
                saved: Saved<Self>,
                output_gradient: FloatTensor<Self>,
                sums: FloatTensor<Self>,
                count: usize,
            ) -> FloatTensor<Self> {
                $module::input_gradient(saved, output_gradient, sums, count)
            }
        }
    };
}

kernels!(Flex, host);
#[cfg(feature = "cuda")]
kernels!(burn_cubecl::Cube, composed);

impl Normalization {
    pub(super) fn new(count: Count, epsilon: f64, group: Option<ProcessGroup>) -> Self {
        Self { count, epsilon, group }
    }
}

/// The operation's tensors: input, gamma, beta, mean and variance.
pub(crate) type Tensors<T> = [T; 5];

/// Computes the output in the type of the statistics, and gives it the type of the input.
pub(crate) fn forward<B: Kernels>(
    tensors: Tensors<FloatTensor<B>>,
    normalization: &Normalization,
) -> FloatTensor<B> {
    let [input, gamma, beta, mean, variance] = tensors;
    let dtype = input.dtype();
    let wide = statistics_type(dtype);
    let saved = Saved {
        input: cast::<B>(input, wide),
        gamma: cast::<B>(gamma, wide),
        mean,
        variance,
        epsilon: normalization.epsilon,
    };
    cast::<B>(B::normalize(saved, cast::<B>(beta, wide)), dtype)
}

/// Changes a tensor's float type, if it is another.
fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => B::float_cast(tensor, dtype.into()),
    }
}

#[derive(Debug)]
pub(crate) struct NormalizeStep;

/// What the backward step keeps.
#[derive(Debug, Clone)]
pub(crate) struct Kept<B: Backend> {
    pub(crate) input: NodeId,
    pub(crate) gamma: NodeId,
    pub(crate) mean: FloatTensor<B>,
    pub(crate) variance: FloatTensor<B>,
    pub(crate) normalization: Normalization,
}

impl<B: BonfireOps + IntoDispatch + Kernels> Backward<B, 3> for NormalizeStep {
    type State = Kept<B>;

    // INVARIANT: the graph's lock is held here, so nothing below may call an autodiff operation.
    fn backward(self, ops: Ops<Kept<B>, 3>, grads: &mut Gradients, kept: &mut Checkpointer) {
        let output_gradient = grads.consume::<B>(&ops.node);
        let Kept { input, gamma, mean, variance, normalization } = ops.state;
        let input: FloatTensor<B> = kept.retrieve_node_output(input);
        let gamma: FloatTensor<B> = kept.retrieve_node_output(gamma);
        let [of_input, of_gamma, of_beta] = ops.parents;
        let types = (input.dtype(), gamma.dtype());
        let wide = statistics_type(types.0);
        let saved = Saved::<B> {
            input: cast::<B>(input, wide),
            gamma: cast::<B>(gamma, wide),
            mean,
            variance,
            epsilon: normalization.epsilon,
        };
        let output_gradient = cast::<B>(output_gradient, wide);

        let mut sums = B::gradient_sums(&saved, &output_gradient);
        let [gamma_gradient, beta_gradient] = parameter_gradients(&saved, &sums);
        if let Some(node) = of_gamma {
            grads.register::<B>(node.id, cast::<B>(gamma_gradient, types.1));
        }
        if let Some(node) = of_beta {
            grads.register::<B>(node.id, cast::<B>(beta_gradient, types.1));
        }
        // Whether the input needs a gradient follows from the model, so all ranks agree.
        let Some(node) = of_input else { return };
        if let Some(group) = normalization.group {
            sums = B::collective(sums, TensorCollective::sum(group));
        }
        let count = match normalization.count {
            Count::Known(count) => count,
            Count::Apart(count) => {
                let share = B::primitive_of(count.recip().cast(sums.dtype()));
                sums = share.map_or(sums.clone(), |share| B::float_mul(sums, share));
                1
            }
        };
        let gradient = B::input_gradient(saved, output_gradient, sums, count);
        grads.register::<B>(node.id, cast::<B>(gradient, types.0));
    }
}

/// The gradients of gamma and beta, from sums over this rank's batch.
fn parameter_gradients<B: Backend>(saved: &Saved<B>, sums: &FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let channels = saved.gamma.shape().num_elements();
    let part = |range: std::ops::Range<usize>| B::float_slice(sums.clone(), &[range.into()]);
    let variance = saved.variance.clone();
    let deviation = B::float_sqrt(B::float_add_scalar(variance, Scalar::Float(saved.epsilon)));
    [B::float_div(part(channels..2 * channels), deviation), part(0..channels)]
}
