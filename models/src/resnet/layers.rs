use super::block::{BasicBlock, Block, Bottleneck};
use crate::ModelError;
use bonfire_nn::conv::{Conv2d, Conv2dConfig};
use bonfire_nn::{NnError, Norm, NormConfig, NormKind};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::Device;
use std::f64::consts::SQRT_2;

/// He et al., "Delving Deep into Rectifiers", 2015, equation 14: keeps the variance of gradients.
const HE: Initializer = Initializer::KaimingNormal { gain: SQRT_2, fan_out_only: true };

/// Makes the layers of one network.
pub(super) struct Layers<'a> {
    pub(super) norm: NormConfig,
    pub(super) zero_init_residual: bool,
    pub(super) device: &'a Device,
}

/// A convolution and what follows it.
pub(super) type ConvNorm = (Conv2d, Norm);

/// What a stage consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    Basic,
    Bottleneck,
}

impl BlockKind {
    /// Channels that leave a block, for one of its planes.
    pub(super) fn expansion(self) -> usize {
        match self {
            Self::Basic => 1,
            Self::Bottleneck => 4,
        }
    }
}

/// Input and output of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockShape {
    pub(super) kind: BlockKind,
    pub(super) input: usize,
    /// Channels of its inner convolutions.
    pub(super) planes: usize,
    pub(super) stride: usize,
}

impl BlockShape {
    pub(super) fn output(&self) -> usize {
        self.planes * self.kind.expansion()
    }
}

impl Layers<'_> {
    /// Makes `count` blocks, of which the first changes the shape.
    pub(super) fn stage(&self, first: BlockShape, count: usize) -> Result<Vec<Block>, ModelError> {
        let rest = BlockShape { input: first.output(), stride: 1, ..first };
        let shapes = std::iter::once(first).chain(std::iter::repeat(rest)).take(count);
        shapes.map(|shape| self.block(shape)).collect()
    }

    pub(super) fn block(&self, shape: BlockShape) -> Result<Block, ModelError> {
        Ok(match shape.kind {
            BlockKind::Basic => Block::Basic(BasicBlock::new(self, shape)?),
            BlockKind::Bottleneck => Block::Bottleneck(Bottleneck::new(self, shape)?),
        })
    }

    /// A square kernel under padding that keeps the size of the image, but for the stride.
    pub(super) fn conv_norm(
        &self,
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
    ) -> Result<ConvNorm, ModelError> {
        Ok((self.conv(channels, kernel, stride, HE), self.norm(self.norm, channels[1])?))
    }

    /// The end of a residual branch, which at first gives 0 if the network asks for it.
    pub(super) fn last_conv_norm(
        &self,
        channels: [usize; 2],
        kernel: usize,
    ) -> Result<ConvNorm, ModelError> {
        let zero = self.zero_init_residual;
        let weight = if zero && self.norm.kind == NormKind::None { Initializer::Zeros } else { HE };
        let norm = self.norm(self.norm.with_zero_gamma(zero), channels[1])?;
        Ok((self.conv(channels, kernel, 1, weight), norm))
    }

    /// What takes the input of a block to the shape of its output; nothing if they are the same.
    pub(super) fn downsample(&self, shape: BlockShape) -> Result<Option<ConvNorm>, ModelError> {
        let (input, output) = (shape.input, shape.output());
        if shape.stride == 1 && input == output {
            return Ok(None);
        }
        self.conv_norm([input, output], 1, shape.stride).map(Some)
    }

    fn conv(
        &self,
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
        weight: Initializer,
    ) -> Conv2d {
        let padding = (kernel - 1) / 2;
        let conv = Conv2dConfig::new(channels, [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding))
            .with_initializer(weight)
            .with_bias(false)
            .init(self.device);
        // The normalisations bring a bias of their own.
        let bias = (self.norm.kind == NormKind::None)
            .then(|| Initializer::Zeros.init([channels[1]], self.device));
        Conv2d { bias, ..conv }
    }

    fn norm(&self, config: NormConfig, channels: usize) -> Result<Norm, ModelError> {
        config.init(channels, self.device).map_err(|error| {
            let (key, value) = match error {
                NnError::UnevenGroups { num_groups, .. } => ("norm_groups", num_groups),
                _ => ("width", channels),
            };
            ModelError { key, value: value.to_string(), remedy: error.to_string() }
        })
    }
}
