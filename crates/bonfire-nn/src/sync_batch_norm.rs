use crate::norm::AFFINE;
use crate::synchronization::Synchronization;
use crate::watch::{LayerName, report};
use bonfire_comm::ProcessGroup;
use bonfire_tensor::autodiff::with_autodiff_of;
use bonfire_tensor::batch_norm::{BatchStatistics, batch_statistics, normalize, statistics_type};
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param, RunningState};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Tensor, assert_shape};

/// Makes a [`SyncBatchNorm`]; names and defaults are those of Burn's `BatchNormConfig`.
#[derive(Config, Debug)]
pub struct SyncBatchNormConfig {
    /// Channels; at least 1.
    pub num_features: usize,
    /// What is added to the variance; positive and finite. Default 1e-5.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Share of a batch in the running statistics, from 0 to 1. Default 0.1.
    #[config(default = 0.1)]
    pub momentum: f64,
}

/// Batch normalisation whose batches are those of all ranks of a group together.
///
/// `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta`, with one gamma and one beta a channel.
///
/// On a device with autodiff, mean and variance are those of the batch, and the running statistics
/// follow them: the running variance follows the unbiased one (divided by n - 1), as in PyTorch,
/// where Burn's follows the biased one. Elsewhere the running statistics are what it normalises by.
/// So does a layer that is frozen by Burn's [`freeze`](Module::freeze), wherever it is.
///
/// Inputs of type f16 or bf16 are normalised in f32, by f32 statistics.
///
/// A new layer waits for its group: [`connect_sync_batchnorm`](crate::connect_sync_batchnorm) gives
/// it one, and the `Trainer` does so by itself. Until then, or with a group of one rank, it
/// normalises over its own batch. Fields and records are those of Burn's [`BatchNorm`], and either
/// can be made [`From`] the other.
///
/// # Collective
/// A forward pass that trains runs one all-gather of `1 + 2 * channels` numbers, and its backward
/// pass one all-reduce of `2 * channels`, so every rank runs both, in the same order among the
/// layers; a rank's batch may be empty. Other forward passes communicate nothing.
///
/// # Reference
/// `torch.nn.SyncBatchNorm`; Ioffe and Szegedy, "Batch Normalization", 2015, section 3.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SyncBatchNorm {
    /// The scales. Shape `[channels]`.
    pub gamma: Param<Tensor<1>>,
    /// The offsets. Shape `[channels]`.
    pub beta: Param<Tensor<1>>,
    /// Whether the layer is not frozen.
    pub training: Param<Flag>,
    /// Mean of the batches so far, the last ones most. Shape `[channels]`.
    pub running_mean: RunningState<Tensor<1>>,
    /// Unbiased variance of the batches so far, the last ones most. Shape `[channels]`.
    pub running_var: RunningState<Tensor<1>>,
    /// Share of a batch in the running statistics.
    pub momentum: f64,
    /// What is added to the variance.
    pub epsilon: f64,
    synchronization: Synchronization,
}

impl SyncBatchNormConfig {
    /// Makes a layer that waits for its group.
    ///
    /// # Panics
    /// When a value is outside its range, as Burn's.
    pub fn init(&self, device: &burn::tensor::Device) -> SyncBatchNorm {
        BatchNormConfig::new(self.num_features)
            .with_epsilon(self.epsilon)
            .with_momentum(self.momentum)
            .init(device)
            .into()
    }
}

impl SyncBatchNorm {
    /// Normalises a batch.
    ///
    /// A failure of the group aborts it, so that its next operation on any rank, at the latest the
    /// reduction of the gradients, returns the cause; what this one returns is then NaN. Such a
    /// failure is also a batch of which all ranks together have less than two values a channel.
    ///
    /// # Shapes
    /// `[batch, channels, ...]`, the same out as in.
    ///
    /// # Panics
    /// When the input has other channels than the layer, or when a layer without a group trains on
    /// less than two values a channel.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let [num_features] = self.gamma.shape().dims();
        assert_shape!(input, [_, num_features, ..]);
        let shape = input.shape();
        let output = match input.device().is_autodiff() && self.training.is_enabled() {
            true => self.forward_train(input),
            false => self.forward_inference(input),
        };
        let kind = if self.is_sync() { "SyncBatchNorm" } else { "BatchNorm" };
        let flops = || AFFINE * shape.num_elements() as u64;
        report(|| LayerName::HolderOf(self.gamma.id), kind, shape.clone(), &output, flops);
        output
    }

    /// The ranks with which the layer shares its batches, if it has been given them.
    pub fn group(&self) -> Option<&ProcessGroup> {
        self.synchronization.group()
    }

    /// Whether the layer shares its batches with a group, or waits for one.
    pub fn is_sync(&self) -> bool {
        !matches!(self.synchronization, Synchronization::Off)
    }

    /// Makes the layer normalise over its own batch, whatever the number of ranks.
    pub fn without_sync(self) -> Self {
        Self { synchronization: Synchronization::Off, ..self }
    }

    fn forward_train<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let group = self.group();
        let [num_features] = self.gamma.shape().dims();
        let values = input.dims().iter().product::<usize>() / num_features;
        assert!(
            group.is_some() || values > 1,
            "batch normalisation in training needs at least 2 values a channel, got {values}"
        );
        match batch_statistics(input.clone(), group) {
            Ok(statistics) => {
                self.remember(&statistics);
                let parameters = [self.gamma.val(), self.beta.val()];
                normalize(input, parameters, &statistics, self.epsilon, group)
            }
            Err(error) => {
                if let Some(group) = group {
                    group.abort(&error.to_string());
                }
                input.mul_scalar(f64::NAN)
            }
        }
    }

    fn remember(&self, batch: &BatchStatistics) {
        self.follow(&self.running_mean, batch.mean.clone());
        self.follow(&self.running_var, batch.unbiased_variance());
    }

    fn follow(&self, running: &RunningState<Tensor<1>>, batch: Tensor<1>) {
        let kept = running.value_sync().to_device(&batch.device());
        let old = kept.clone().without_autodiff();
        let batch = batch.cast(old.dtype()).mul_scalar(self.momentum);
        let new = old.mul_scalar(1.0 - self.momentum) + batch;
        running.update(with_autodiff_of(&kept, new));
    }

    fn forward_inference<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (device, dtype) = (input.device(), input.dtype());
        let wide = statistics_type(dtype);
        let running = |of: &RunningState<Tensor<1>>| {
            with_autodiff_of(&input, of.value().to_device(&device).cast(wide))
        };
        let (mean, variance) = (running(&self.running_mean), running(&self.running_var));
        let output = burn::tensor::module::batch_norm(
            input.cast(wide),
            self.gamma.val().cast(wide),
            self.beta.val().cast(wide),
            mean,
            variance,
            self.epsilon,
        );
        output.cast(dtype)
    }
}

/// The layer waits for its group.
impl From<BatchNorm> for SyncBatchNorm {
    fn from(norm: BatchNorm) -> Self {
        let BatchNorm { gamma, beta, training, running_mean, running_var, momentum, epsilon } =
            norm;
        let synchronization = Synchronization::Wanted;
        Self {
            gamma,
            beta,
            training,
            running_mean,
            running_var,
            momentum,
            epsilon,
            synchronization,
        }
    }
}

impl From<SyncBatchNorm> for BatchNorm {
    fn from(norm: SyncBatchNorm) -> Self {
        let SyncBatchNorm { gamma, beta, training, running_mean, running_var, .. } = norm;
        let (momentum, epsilon) = (norm.momentum, norm.epsilon);
        Self { gamma, beta, training, running_mean, running_var, momentum, epsilon }
    }
}

impl ModuleDisplay for SyncBatchNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [num_features] = self.gamma.shape().dims();
        content
            .add("num_features", &num_features)
            .add("momentum", &self.momentum)
            .add("epsilon", &self.epsilon)
            .add("synchronization", &self.synchronization)
            .optional()
    }
}

#[cfg(test)]
mod tests;
