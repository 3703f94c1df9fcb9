use super::ResNet;
use super::layers::{BlockKind, BlockShape, Layers};
use crate::ModelError;
use bonfire_nn::{ImageShape, LinearConfig, NormConfig, NormKind};
use burn::nn::PaddingConfig2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of `[model]` with `kind = "resnet"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResNetConfig {
    /// Layers with weights, projections aside: 8, 18, 34, 50, 101 or 152. Default 18.
    pub depth: usize,
    /// What comes before the blocks. Default `"cifar"`.
    pub stem: Stem,
    /// Channels of the first stage's inner convolutions. Default 64, and 16 for depth 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Normalisation after every convolution: `"batch"`, `"sync_batch"` (over the batches of all
    /// ranks), `"group"` or `"none"`. Default `"batch"`.
    ///
    /// With `"none"` the convolutions have biases, which begin at 0.
    pub norm: NormKind,
    /// Groups of `norm = "group"`; must divide `width`. Default 32.
    pub norm_groups: usize,
    /// Whether every residual branch gives 0 at first, so that blocks begin as their shortcuts.
    /// Default true.
    ///
    /// It is the last gamma of a branch that begins at 0 (Goyal et al., "Accurate, Large Minibatch
    /// SGD", 2017, section 5.1), or with `norm = "none"` the weight of its last convolution (Zhang
    /// et al., "Fixup Initialization", 2019, section 3.2).
    pub zero_init_residual: bool,
}

/// The layers before the first block of a [`ResNet`], as recipes write them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stem {
    /// A 3x3 convolution of stride 1, for images of about 32 pixels; the default.
    #[default]
    Cifar,
    /// A 7x7 convolution and a 3x3 max-pooling, each of stride 2, for images of about 224 pixels.
    Imagenet,
}

impl Default for ResNetConfig {
    fn default() -> Self {
        Self {
            depth: 18,
            stem: Stem::default(),
            width: None,
            norm: NormKind::default(),
            norm_groups: 32,
            zero_init_residual: true,
        }
    }
}

/// What a depth means.
struct Layout {
    kind: BlockKind,
    /// Blocks of each stage.
    blocks: &'static [usize],
    width: usize,
}

impl Layout {
    /// Checks the sizes of the largest layers: those of the last stage, the first one and the last.
    fn check_width(&self, image: ImageShape, num_classes: usize) -> Result<(), ModelError> {
        let check = |sizes: &[usize]| ModelError::check_layer("width", self.width, sizes);
        let stages = 1 << (self.blocks.len() - 1);
        check(&[image.channels, self.width, 7, 7])?;
        check(&[stages, stages, self.width, self.width, 3, 3])?;
        check(&[self.kind.expansion(), stages, self.width, num_classes])
    }
}

impl Stem {
    fn stride(self) -> usize {
        match self {
            Self::Cifar => 1,
            Self::Imagenet => 4,
        }
    }

    /// Size and stride of the convolution's kernel.
    fn kernel(self) -> (usize, usize) {
        match self {
            Self::Cifar => (3, 1),
            Self::Imagenet => (7, 2),
        }
    }

    fn maxpool(self) -> Option<MaxPool2d> {
        let pool = MaxPool2dConfig::new([3, 3])
            .with_strides([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        (self == Self::Imagenet).then(|| pool.init())
    }
}

impl ResNetConfig {
    /// Makes the model.
    ///
    /// # Errors
    /// [`ModelError`] for another depth, a width of 0 or too large, groups that do not divide the width, or
    /// images smaller than what one pixel of the last stage stands for.
    pub fn init(
        &self,
        image: ImageShape,
        num_classes: usize,
        device: &Device,
    ) -> Result<ResNet, ModelError> {
        let layout = self.layout()?;
        self.check_size(image, &layout)?;
        layout.check_width(image, num_classes)?;
        let norm = NormConfig::new(self.norm).with_num_groups(self.norm_groups);
        let layers = Layers { norm, zero_init_residual: self.zero_init_residual, device };

        let (kernel, stride) = self.stem.kernel();
        let (conv1, bn1) = layers.conv_norm([image.channels, layout.width], kernel, stride)?;
        let mut channels = layout.width;
        let mut stages = Vec::new();
        for (index, &count) in layout.blocks.iter().enumerate() {
            let stride = if index == 0 { 1 } else { 2 };
            let planes = layout.width << index;
            let first = BlockShape { kind: layout.kind, input: channels, planes, stride };
            stages.push(layers.stage(first, count)?);
            channels = first.output();
        }
        let mut stages = stages.into_iter();
        let mut stage = || stages.next().unwrap_or_default();
        Ok(ResNet {
            conv1,
            bn1,
            maxpool: self.stem.maxpool(),
            layer1: stage(),
            layer2: stage(),
            layer3: stage(),
            layer4: stage(),
            fc: LinearConfig::new(channels, num_classes).init(device),
        })
    }

    fn layout(&self) -> Result<Layout, ModelError> {
        let (kind, blocks, width): (_, &[usize], _) = match self.depth {
            8 => (BlockKind::Basic, &[1, 1, 1], 16),
            18 => (BlockKind::Basic, &[2, 2, 2, 2], 64),
            34 => (BlockKind::Basic, &[3, 4, 6, 3], 64),
            50 => (BlockKind::Bottleneck, &[3, 4, 6, 3], 64),
            101 => (BlockKind::Bottleneck, &[3, 4, 23, 3], 64),
            152 => (BlockKind::Bottleneck, &[3, 8, 36, 3], 64),
            depth => {
                let remedy = "must be 8, 18, 34, 50, 101 or 152".to_string();
                return Err(refuse("depth", depth, remedy));
            }
        };
        match self.width.unwrap_or(width) {
            0 => Err(refuse("width", 0, "must be at least 1".to_string())),
            width => Ok(Layout { kind, blocks, width }),
        }
    }

    fn check_size(&self, image: ImageShape, layout: &Layout) -> Result<(), ModelError> {
        let least = self.stem.stride() << (layout.blocks.len() - 1);
        if image.height >= least && image.width >= least {
            return Ok(());
        }
        let ImageShape { height, width, .. } = image;
        let what =
            format!("divides height and width by {least}, and the images are {height}x{width}");
        Err(match self.stem {
            Stem::Imagenet => ModelError {
                key: "stem",
                value: "\"imagenet\"".to_string(),
                remedy: format!("the network {what}; use \"cifar\""),
            },
            Stem::Cifar => {
                refuse("depth", self.depth, format!("the network {what}; use a smaller model"))
            }
        })
    }
}

fn refuse(key: &'static str, value: usize, remedy: String) -> ModelError {
    ModelError { key, value: value.to_string(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_nn::ImageClassifier;
    use burn::tensor::Tensor;

    fn square(size: usize) -> ImageShape {
        ImageShape { channels: 3, height: size, width: size }
    }

    fn refusal(config: ResNetConfig, size: usize) -> String {
        config.init(square(size), 10, &Device::flex()).unwrap_err().to_string()
    }

    #[test]
    fn every_image_gets_a_score_for_every_class() {
        let device = Device::flex();
        for depth in [8, 18, 34, 50, 101, 152] {
            for (stem, height, width) in [(Stem::Cifar, 9, 15), (Stem::Imagenet, 33, 40)] {
                let config =
                    ResNetConfig { depth, stem, width: Some(2), ..ResNetConfig::default() };
                let image = ImageShape { channels: 1, height, width };
                let net = config.init(image, 5, &device).unwrap();
                let scores = net.forward(Tensor::zeros([2, 1, height, width], &device));
                assert_eq!(scores.dims(), [2, 5], "{depth} {stem:?}");
            }
        }
    }

    #[test]
    fn an_unknown_depth_is_refused_with_those_known() {
        let message = refusal(ResNetConfig { depth: 20, ..Default::default() }, 32);
        assert_eq!(message, "model.depth = 20: must be 8, 18, 34, 50, 101 or 152");
    }

    #[test]
    fn a_width_of_nothing_is_refused() {
        let message = refusal(ResNetConfig { width: Some(0), ..Default::default() }, 32);
        assert_eq!(message, "model.width = 0: must be at least 1");
    }

    #[test]
    fn widths_that_no_memory_holds_are_refused() {
        for width in [1 << 12, usize::MAX] {
            let message = refusal(ResNetConfig { width: Some(width), ..Default::default() }, 32);
            let says = format!("model.width = {width}: a layer would have ");
            assert!(message.starts_with(&says), "{message}");
        }
        let largest = ResNetConfig { width: Some(1 << 10), ..Default::default() };
        assert!(largest.init(square(32), 10, &Device::flex()).is_ok());
    }

    #[test]
    fn groups_that_do_not_divide_the_width_are_refused() {
        let config = ResNetConfig { depth: 8, norm: NormKind::Group, ..Default::default() };
        let message = refusal(config.clone(), 32);
        assert!(message.starts_with("model.norm_groups = 32: 16 channels"), "{message}");
        let config = ResNetConfig { norm_groups: 8, ..config };
        assert!(config.init(square(32), 10, &Device::flex()).is_ok());
    }

    #[test]
    fn images_too_small_for_the_strides_are_refused() {
        for (depth, stem, least) in [
            (8, Stem::Cifar, 4),
            (50, Stem::Cifar, 8),
            (8, Stem::Imagenet, 16),
            (18, Stem::Imagenet, 32),
        ] {
            let config = ResNetConfig { depth, stem, width: Some(1), ..Default::default() };
            assert!(config.init(square(least), 10, &Device::flex()).is_ok(), "{depth} {stem:?}");
            let message = refusal(config, least - 1);
            let size = format!("{0}x{0}", least - 1);
            assert!(message.contains(&size), "{message}");
        }
    }
}
