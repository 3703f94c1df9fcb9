use crate::watch::{LayerName, report};
use crate::{NnError, SyncBatchNorm, SyncBatchNormConfig, in_f32};
use burn::module::Module;
use burn::nn::{BatchNorm, GroupNorm, GroupNormConfig, Identity, Initializer};
use burn::tensor::{Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What normalises the channels of a layer, as recipes write it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NormKind {
    /// By mean and variance over batch and space; the default.
    #[default]
    Batch,
    /// The same over the batches of all ranks.
    SyncBatch,
    /// By mean and variance over space and the channels of a group, for every sample by itself.
    Group,
    /// Nothing.
    None,
}

/// Makes the [`Norm`]s of a model, all of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormConfig {
    /// What the layers are.
    pub kind: NormKind,
    /// Groups of every [`NormKind::Group`] layer. Default 32.
    pub num_groups: usize,
    /// Whether the scales begin at 0 instead of 1, so that the layers give 0 at first. Default
    /// false.
    pub zero_gamma: bool,
}

/// A normalisation of channels whose kind is chosen at run time.
///
/// `y = (x - mean) / sqrt(variance + 1e-5) * gamma + beta`, with one gamma and one beta a channel.
///
/// The running statistics of [`Norm::Batch`] follow the batches with momentum 0.1, as described at
/// [`SyncBatchNorm`].
///
/// # Reference
/// `torch.nn.BatchNorm2d`, `torch.nn.SyncBatchNorm` and `torch.nn.GroupNorm`; Ioffe and Szegedy,
/// "Batch Normalization", 2015, section 3; Wu and He, "Group Normalization", 2018, section 3.
#[derive(Module, Debug)]
#[non_exhaustive]
pub enum Norm {
    /// Over batch and space, of this rank or of all ranks: [`NormKind::Batch`] and
    /// [`NormKind::SyncBatch`].
    ///
    /// One variant for both, since a variant's name is part of the path by which a checkpoint knows a
    /// parameter, and a checkpoint of either is one of the other.
    Batch(SyncBatchNorm),
    /// Over space and the channels of a group.
    Group(GroupNorm),
    /// The input as it is; has no parameters.
    None(Identity),
}

impl NormConfig {
    /// Asks for layers of a kind, with the defaults of the other fields.
    pub fn new(kind: NormKind) -> Self {
        Self { kind, num_groups: 32, zero_gamma: false }
    }

    /// Sets the groups of [`NormKind::Group`] layers.
    pub fn with_num_groups(self, num_groups: usize) -> Self {
        Self { num_groups, ..self }
    }

    /// Sets whether the scales begin at 0.
    pub fn with_zero_gamma(self, zero_gamma: bool) -> Self {
        Self { zero_gamma, ..self }
    }

    /// Makes a layer for a number of channels.
    ///
    /// # Errors
    /// [`NnError::NoChannels`], or [`NnError::UnevenGroups`] when the groups do not divide them.
    pub fn init(&self, channels: usize, device: &Device) -> Result<Norm, NnError> {
        if channels == 0 {
            return Err(NnError::NoChannels);
        }
        let gamma = if self.zero_gamma { Initializer::Zeros } else { Initializer::Ones };
        let gamma = gamma.init([channels], device);
        Ok(match self.kind {
            NormKind::Batch | NormKind::SyncBatch => {
                let mut norm = SyncBatchNormConfig::new(channels).init(device);
                norm.gamma = gamma;
                let is_sync = self.kind == NormKind::SyncBatch;
                Norm::Batch(if is_sync { norm } else { norm.without_sync() })
            }
            NormKind::Group => {
                let num_groups = self.num_groups;
                if num_groups == 0 || !channels.is_multiple_of(num_groups) {
                    return Err(NnError::UnevenGroups { channels, num_groups });
                }
                let norm = GroupNormConfig::new(num_groups, channels).init(device);
                Norm::Group(GroupNorm { gamma: Some(gamma), ..norm })
            }
            NormKind::None => Norm::None(Identity::new()),
        })
    }
}

impl Norm {
    /// What the layer is.
    pub fn kind(&self) -> NormKind {
        match self {
            Self::Batch(norm) if norm.is_sync() => NormKind::SyncBatch,
            Self::Batch(_) => NormKind::Batch,
            Self::Group(_) => NormKind::Group,
            Self::None(_) => NormKind::None,
        }
    }

    /// Normalises a batch, in f32 when the input has 16 bits.
    ///
    /// # Shapes
    /// `[batch, channels, ...]`, the same out as in.
    ///
    /// # Collective
    /// That of [`SyncBatchNorm`], for layers of [`NormKind::SyncBatch`].
    ///
    /// # Panics
    /// When the input has other channels than the layer; as [`SyncBatchNorm::forward`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Batch(norm) => norm.forward(input),
            Self::Group(norm) => group_norm(norm, input),
            Self::None(identity) => identity.forward(input),
        }
    }
}

fn group_norm<const D: usize>(norm: &GroupNorm, input: Tensor<D>) -> Tensor<D> {
    let shape = input.shape();
    let output = in_f32(input, |input| norm.forward(input));
    if let Some(gamma) = &norm.gamma {
        let flops = || AFFINE * shape.num_elements() as u64;
        report(|| LayerName::HolderOf(gamma.id), "GroupNorm", shape.clone(), &output, flops);
    }
    output
}

/// A normalised value is multiplied and added to once; the statistics are not counted.
pub(crate) const AFFINE: u64 = 2;

/// The layer does not synchronise, as Burn's does not.
impl From<BatchNorm> for Norm {
    fn from(norm: BatchNorm) -> Self {
        Self::Batch(SyncBatchNorm::from(norm).without_sync())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two samples of two channels of two pixels.
    fn images(device: &Device) -> Tensor<4> {
        let values = [[[[1.0f32, 2.0]], [[10.0, 30.0]]], [[[3.0, 6.0]], [[20.0, 40.0]]]];
        Tensor::from_data(values, device)
    }

    fn forward(norm: &Norm, device: &Device) -> Vec<f32> {
        norm.forward(images(device)).into_data().try_to_vec().unwrap()
    }

    fn assert_near(got: &[f32], expected: &[f32]) {
        assert_eq!(got.len(), expected.len());
        let near = |(got, expected): (&f32, &f32)| (got - expected).abs() < 1e-3;
        assert!(got.iter().zip(expected).all(near), "{got:?} {expected:?}");
    }

    #[test]
    fn batch_norm_trains_with_the_batch_and_evaluates_with_what_it_remembers() {
        let device = Device::flex().autodiff();
        let norm = NormConfig::new(NormKind::Batch).init(2, &device).unwrap();
        // Channel 0 has mean 3 and variance 3.5, channel 1 has 25 and 125.
        let trained = forward(&norm, &device);
        let expected = [-1.0690, -0.5345, -1.3416, 0.4472, 0.0, 1.6036, -0.4472, 1.3416];
        assert_near(&trained, &expected);
        // A tenth of the way from mean 0 and variance 1 to mean and unbiased variance.
        let evaluated = forward(&norm.valid(), &Device::flex());
        let means = [0.3, 0.3, 2.5, 2.5, 0.3, 0.3, 2.5, 2.5];
        let deviations =
            [1.3667f32, 1.3667, 17.5667, 17.5667, 1.3667, 1.3667, 17.5667, 17.5667].map(f32::sqrt);
        let inputs: Vec<f32> = images(&Device::flex()).into_data().try_to_vec().unwrap();
        let expected: Vec<f32> =
            (0..8).map(|index| (inputs[index] - means[index]) / deviations[index]).collect();
        assert_near(&evaluated, &expected);
    }

    #[test]
    fn group_norm_looks_at_every_sample_by_itself() {
        let device = Device::flex();
        let config = NormConfig::new(NormKind::Group).with_num_groups(2);
        let norm = config.init(2, &device).unwrap();
        assert_near(&forward(&norm, &device), &[-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0]);
    }

    #[test]
    fn no_norm_changes_nothing_and_has_no_parameters() {
        let device = Device::flex();
        let norm = NormConfig::new(NormKind::None).init(2, &device).unwrap();
        assert_near(&forward(&norm, &device), &[1.0, 2.0, 10.0, 30.0, 3.0, 6.0, 20.0, 40.0]);
        assert_eq!(norm.num_params(), 0);
    }

    #[test]
    fn a_norm_of_zero_gamma_gives_zero() {
        let device = Device::flex().autodiff();
        for kind in [NormKind::Batch, NormKind::Group] {
            let config = NormConfig::new(kind).with_num_groups(1).with_zero_gamma(true);
            assert_eq!(forward(&config.init(2, &device).unwrap(), &device), [0.0; 8], "{kind:?}");
        }
    }

    #[test]
    fn channels_that_cannot_be_normalised_are_refused() {
        let device = Device::flex();
        let group = NormConfig::new(NormKind::Group);
        let error = group.init(48, &device).unwrap_err();
        assert_eq!(error, NnError::UnevenGroups { channels: 48, num_groups: 32 });
        let error = group.with_num_groups(0).init(48, &device).unwrap_err();
        assert_eq!(error, NnError::UnevenGroups { channels: 48, num_groups: 0 });
        assert_eq!(group.init(0, &device).unwrap_err(), NnError::NoChannels);
    }
}
