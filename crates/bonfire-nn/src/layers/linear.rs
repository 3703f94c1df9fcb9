use super::conv::flops;
use crate::watch::{LayerName, report};
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, Linear as BurnLinear, LinearConfig as BurnLinearConfig, LinearLayout};
use burn::tensor::module::linear;
use burn::tensor::{Device, Tensor, assert_shape};

/// Makes a [`Linear`]; as `burn::nn::LinearConfig`.
#[derive(Config, Debug)]
pub struct LinearConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the output.
    pub d_output: usize,
    /// Whether a number is added to every feature. Default true.
    #[config(default = true)]
    pub bias: bool,
    /// How weights and biases begin. Default uniform in +-1 / sqrt(features of the input), as PyTorch's.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// How the weight lies in memory. Default by rows.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

/// A product with a matrix, `y = x W + b`; as `burn::nn::Linear`, with the same record.
///
/// # Reference
/// `torch.nn.Linear`, whose weight is the transpose.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// Shape `[features in, features out]`.
    pub weight: Param<Tensor<2>>,
    /// Shape `[features out]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl LinearConfig {
    /// Makes the layer.
    pub fn init(&self, device: &Device) -> Linear {
        BurnLinearConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout)
            .init(device)
            .into()
    }
}

impl Linear {
    /// Multiplies the last dimension with the weight, and adds the bias.
    ///
    /// # Shapes
    /// - input `[..., features in]`
    /// - output `[..., features out]`
    ///
    /// # Panics
    /// When the last dimension has other features than the layer.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let shape = input.shape();
        let weight = self.weight.val();
        let [inputs, _] = weight.dims();
        assert_shape!(input, [.., inputs]);
        let output = linear(input, weight, self.bias.as_ref().map(|bias| bias.val()));
        report(
            || LayerName::HolderOf(self.weight.id),
            "Linear",
            shape,
            &output,
            || flops(&output, inputs, self.bias.is_some()),
        );
        output
    }
}

impl From<BurnLinear> for Linear {
    fn from(linear: BurnLinear) -> Self {
        let BurnLinear { weight, bias } = linear;
        Self { weight, bias }
    }
}

impl From<Linear> for BurnLinear {
    fn from(linear: Linear) -> Self {
        let Linear { weight, bias } = linear;
        Self { weight, bias }
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [inputs, outputs] = self.weight.dims();
        content
            .add("features", &format!("{inputs} -> {outputs}"))
            .add("bias", &self.bias.is_some())
            .optional()
    }
}
