//! Convolutions.

use crate::watch::{LayerName, report};
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::conv::{Conv2d as BurnConv2d, Conv2dConfig as BurnConv2dConfig};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

/// Makes a [`Conv2d`]; as `burn::nn::conv::Conv2dConfig`.
#[derive(Config, Debug)]
pub struct Conv2dConfig {
    /// Channels of the input and of the output.
    pub channels: [usize; 2],
    /// Rows and columns of the kernel.
    pub kernel_size: [usize; 2],
    /// Steps between the places of the kernel. Default 1.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// Distance between the pixels that the kernel takes. Default 1.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// Groups of channels that have nothing to do with each other. Default 1.
    #[config(default = "1")]
    pub groups: usize,
    /// Zeros around the image. Default none.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether a number is added to every channel. Default true.
    #[config(default = true)]
    pub bias: bool,
    /// How weights and biases begin. Default uniform in +-1 / sqrt(fan in), as PyTorch's.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0),fan_out_only:false}")]
    pub initializer: Initializer,
}

/// A convolution of images; as `burn::nn::conv::Conv2d`, with the same record.
///
/// # Reference
/// `torch.nn.Conv2d`.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Conv2d {
    /// Shape `[channels out, channels in / groups, rows, columns]`.
    pub weight: Param<Tensor<4>>,
    /// Shape `[channels out]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// Steps between the places of the kernel.
    pub stride: [usize; 2],
    /// Rows and columns of the kernel.
    pub kernel_size: [usize; 2],
    /// Distance between the pixels that the kernel takes.
    pub dilation: [usize; 2],
    /// Groups of channels that have nothing to do with each other.
    pub groups: usize,
    /// Zeros around the image.
    #[module(skip)]
    pub padding: PaddingConfig2d,
}

impl Conv2dConfig {
    /// Makes the layer.
    ///
    /// # Panics
    /// When the groups do not divide the channels, as Burn's.
    pub fn init(&self, device: &Device) -> Conv2d {
        BurnConv2dConfig::new(self.channels, self.kernel_size)
            .with_stride(self.stride)
            .with_dilation(self.dilation)
            .with_groups(self.groups)
            .with_padding(self.padding.clone())
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .init(device)
            .into()
    }
}

impl Conv2d {
    /// Convolves a batch of images.
    ///
    /// # Shapes
    /// - input `[batch, channels in, height, width]`
    /// - output `[batch, channels out, height out, width out]`, where the height out is
    ///   `(height + padding - dilation * (rows - 1) - 1) / stride + 1`, rounded down
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let shape = input.shape();
        let output = BurnConv2d::from(self.clone()).forward(input);
        report(
            || LayerName::HolderOf(self.weight.id),
            "Conv2d",
            shape,
            &output,
            || {
                let [_, inputs, rows, columns] = self.weight.dims();
                flops(&output, inputs * rows * columns, self.bias.is_some())
            },
        );
        output
    }
}

/// Of an output each of whose values is a sum of `products`: as many multiplications, and an addition less
/// but for the bias.
pub(super) fn flops<const D: usize>(output: &Tensor<D>, products: usize, bias: bool) -> u64 {
    let values = output.shape().num_elements() as u64;
    let additions = products - usize::from(!bias && products > 0);
    values * (products + additions) as u64
}

impl From<BurnConv2d> for Conv2d {
    fn from(conv: BurnConv2d) -> Self {
        let BurnConv2d { weight, bias, stride, kernel_size, dilation, groups, padding } = conv;
        Self { weight, bias, stride, kernel_size, dilation, groups, padding }
    }
}

impl From<Conv2d> for BurnConv2d {
    fn from(conv: Conv2d) -> Self {
        let Conv2d { weight, bias, stride, kernel_size, dilation, groups, padding } = conv;
        Self { weight, bias, stride, kernel_size, dilation, groups, padding }
    }
}

impl ModuleDisplay for Conv2d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [outputs, inputs, ..] = self.weight.dims();
        content
            .add("channels", &format!("{} -> {outputs}", inputs * self.groups))
            .add("kernel_size", &format!("{:?}", self.kernel_size))
            .add("stride", &format!("{:?}", self.stride))
            .add("dilation", &format!("{:?}", self.dilation))
            .add("groups", &self.groups)
            .add_debug_attribute("padding", &self.padding)
            .optional()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    #[test]
    fn it_computes_what_burn_computes() {
        let device = Device::flex();
        let config = Conv2dConfig::new([4, 6], [3, 2])
            .with_stride([2, 1])
            .with_dilation([1, 2])
            .with_groups(2)
            .with_padding(PaddingConfig2d::Explicit(1, 2, 1, 2));
        let conv = config.init(&device);
        let input = Tensor::random([2, 4, 7, 9], Distribution::Default, &device);
        let expected = BurnConv2d::from(conv.clone()).forward(input.clone());
        assert_eq!(conv.forward(input).to_data(), expected.to_data());
    }
}
