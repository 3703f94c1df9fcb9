use super::layers::{BlockShape, ConvNorm, Layers};
use crate::ModelError;
use bonfire_nn::Norm;
use bonfire_nn::conv::Conv2d;
use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

/// A residual block: `relu(branch(x) + shortcut(x))`.
///
/// The shortcut is the identity, or a 1x1 convolution and normalisation where the block changes
/// the shape.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a network has few blocks, all of one variant")]
pub enum Block {
    /// Of networks of less than 50 layers.
    Basic(BasicBlock),
    /// Of the others.
    Bottleneck(Bottleneck),
}

/// Two 3x3 convolutions, the first of which has the stride.
///
/// # Reference
/// `torchvision.models.resnet.BasicBlock`.
#[derive(Module, Debug)]
pub struct BasicBlock {
    conv1: Conv2d,
    bn1: Norm,
    conv2: Conv2d,
    bn2: Norm,
    downsample: Option<(Conv2d, Norm)>,
}

/// Convolutions of 1x1 to fewer channels, 3x3 with the stride, and 1x1 to four times the channels.
///
/// # Reference
/// `torchvision.models.resnet.Bottleneck`, ResNet v1.5: the stride is in the 3x3 convolution, where
/// the paper has it in the first.
#[derive(Module, Debug)]
pub struct Bottleneck {
    conv1: Conv2d,
    bn1: Norm,
    conv2: Conv2d,
    bn2: Norm,
    conv3: Conv2d,
    bn3: Norm,
    downsample: Option<(Conv2d, Norm)>,
}

impl Block {
    /// Computes the output of the block.
    ///
    /// # Shapes
    /// - input `[batch, channels, height, width]`
    /// - output `[batch, channels of the stage, height / stride, width / stride]`, rounded up
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Basic(block) => block.forward(input),
            Self::Bottleneck(block) => block.forward(input),
        }
    }
}

impl BasicBlock {
    pub(super) fn new(layers: &Layers<'_>, shape: BlockShape) -> Result<Self, ModelError> {
        let planes = shape.planes;
        let (conv1, bn1) = layers.conv_norm([shape.input, planes], 3, shape.stride)?;
        let (conv2, bn2) = layers.last_conv_norm([planes, planes], 3)?;
        Ok(Self { conv1, bn1, conv2, bn2, downsample: layers.downsample(shape)? })
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let x = relu(self.bn1.forward(self.conv1.forward(input.clone())));
        let x = self.bn2.forward(self.conv2.forward(x));
        relu(x + shortcut(&self.downsample, input))
    }
}

impl Bottleneck {
    pub(super) fn new(layers: &Layers<'_>, shape: BlockShape) -> Result<Self, ModelError> {
        let planes = shape.planes;
        let (conv1, bn1) = layers.conv_norm([shape.input, planes], 1, 1)?;
        let (conv2, bn2) = layers.conv_norm([planes, planes], 3, shape.stride)?;
        let (conv3, bn3) = layers.last_conv_norm([planes, shape.output()], 1)?;
        Ok(Self { conv1, bn1, conv2, bn2, conv3, bn3, downsample: layers.downsample(shape)? })
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let x = relu(self.bn1.forward(self.conv1.forward(input.clone())));
        let x = relu(self.bn2.forward(self.conv2.forward(x)));
        let x = self.bn3.forward(self.conv3.forward(x));
        relu(x + shortcut(&self.downsample, input))
    }
}

fn shortcut(downsample: &Option<ConvNorm>, input: Tensor<4>) -> Tensor<4> {
    match downsample {
        Some((conv, norm)) => norm.forward(conv.forward(input)),
        None => input,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resnet::layers::BlockKind;
    use bonfire_nn::{NormConfig, NormKind};
    use burn::tensor::{Device, Distribution};

    const KINDS: [BlockKind; 2] = [BlockKind::Basic, BlockKind::Bottleneck];
    const NORMS: [NormKind; 3] = [NormKind::Batch, NormKind::Group, NormKind::None];

    fn block(shape: BlockShape, norm: NormKind, zero_init_residual: bool, on: &Device) -> Block {
        let norm = NormConfig::new(norm).with_num_groups(2);
        Layers { norm, zero_init_residual, device: on }.block(shape).unwrap()
    }

    /// What a ReLU may have given.
    fn activations(channels: usize, device: &Device) -> Tensor<4> {
        Tensor::random([2, channels, 6, 5], Distribution::Uniform(0.0, 1.0), device)
    }

    #[test]
    fn a_new_block_is_the_identity() {
        let device = Device::flex().autodiff();
        for (kind, norm) in KINDS.into_iter().flat_map(|kind| NORMS.map(|norm| (kind, norm))) {
            let shape = BlockShape { kind, input: 4 * kind.expansion(), planes: 4, stride: 1 };
            let input = activations(shape.input, &device);
            let zero = block(shape, norm, true, &device).forward(input.clone());
            assert_eq!(zero.to_data(), input.to_data(), "{kind:?} {norm:?}");
            let other = block(shape, norm, false, &device).forward(input.clone());
            assert_ne!(other.to_data(), input.to_data(), "{kind:?} {norm:?}");
        }
    }

    #[test]
    fn a_new_block_that_changes_the_shape_is_its_projection() {
        let device = Device::flex().autodiff();
        for (kind, norm) in KINDS.into_iter().flat_map(|kind| NORMS.map(|norm| (kind, norm))) {
            let shape = BlockShape { kind, input: 4, planes: 8, stride: 2 };
            let block = block(shape, norm, true, &device);
            let input = activations(4, &device);
            let downsample = match &block {
                Block::Basic(block) => &block.downsample,
                Block::Bottleneck(block) => &block.downsample,
            };
            let output = block.forward(input.clone());
            assert_eq!(output.dims(), [2, shape.output(), 3, 3]);
            let projected = relu(shortcut(downsample, input));
            assert_eq!(output.to_data(), projected.to_data(), "{kind:?} {norm:?}");
        }
    }

    #[test]
    fn convolutions_begin_with_the_deviation_of_he() {
        let device = Device::flex();
        let shape = BlockShape { kind: BlockKind::Basic, input: 32, planes: 64, stride: 2 };
        let Block::Basic(block) = block(shape, NormKind::Batch, true, &device) else {
            panic!("asked for a basic block")
        };
        let deviation: f32 = block.conv1.weight.val().square().mean().sqrt().into_scalar();
        let expected = (2.0f32 / (64.0 * 9.0)).sqrt();
        assert!((deviation / expected - 1.0).abs() < 0.03, "{deviation} {expected}");
    }
}
