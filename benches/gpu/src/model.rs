//! What is trained.

use crate::{Precision, Result};
use bonfire::amp::MixedPrecision;
use bonfire::models::resnet::{ResNet, ResNetConfig, Stem};
use bonfire::nn::{ImageShape, NormKind};
use bonfire::tensor::parameters::{self, ParameterSpec};
use burn::module::Module;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};

impl Precision {
    pub(crate) fn mixed(self) -> Option<MixedPrecision> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(MixedPrecision::bf16()),
            Self::Fp16 => Some(MixedPrecision::fp16()),
        }
    }
}

/// Trainable parameters of torchvision's ResNet-50.
const PARAMETERS: usize = 25_557_032;

/// ResNet-50 for 1000 classes, as torchvision initialises it.
pub(crate) fn resnet50(image: usize, device: &Device) -> Result<ResNet> {
    let config = ResNetConfig {
        depth: 50,
        stem: Stem::Imagenet,
        zero_init_residual: false,
        ..ResNetConfig::default()
    };
    let shape = ImageShape { channels: 3, height: image, width: image };
    let model = config.init(shape, 1000, &device.clone().autodiff())?;
    let found = model.num_params();
    // Burn counts the running statistics, too.
    let statistics = 2 * 26_560;
    match found == PARAMETERS || found == PARAMETERS + statistics {
        true => Ok(model),
        false => {
            Err(format!("{found} parameters, and PyTorch's ResNet-50 has {PARAMETERS}").into())
        }
    }
}

/// One batch of noise.
pub(crate) fn noise(batch: usize, image: usize, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let distribution = Distribution::Normal(0.0, 1.0);
    let images = Tensor::random([batch, 3, image, image], distribution, device);
    let classes: Vec<i64> = (0..batch).map(|sample| (sample * 7 % 1000) as i64).collect();
    (images, Tensor::from_data(classes.as_slice(), device))
}

/// A small residual network whose weights are the same on every device.
pub(crate) fn small(norm: NormKind, device: &Device) -> Result<ResNet> {
    let config = ResNetConfig {
        depth: 8,
        width: Some(16),
        norm,
        norm_groups: 8,
        zero_init_residual: false,
        ..ResNetConfig::default()
    };
    let shape = ImageShape { channels: 3, height: 32, width: 32 };
    let model = config.init(shape, 10, &device.clone().autodiff())?;
    // Numbers that look like none in particular, of the size that initialisation has.
    let is_random = |spec: &ParameterSpec| spec.shape.len() > 1 || spec.path == "fc.bias";
    let mut state = parameters::read(&model, is_random)?;
    for (path, tensor) in &mut state.tensors {
        if tensor.shape.len() == 1 {
            tensor.data.as_mut_slice::<f32>()?.fill(0.0);
            continue;
        }
        let fan_in: usize = tensor.shape[1..].iter().product();
        let (seed, size) = (path.len() as f64, (2.0 / fan_in.max(1) as f64).sqrt());
        for (index, value) in tensor.data.as_mut_slice::<f32>()?.iter_mut().enumerate() {
            *value = ((12.9898 * index as f64 + seed).sin() * 1.4 * size) as f32;
        }
    }
    Ok(parameters::write(model, state)?)
}

/// Images and classes of the samples of a range, the same on every device.
pub(crate) fn samples(
    range: std::ops::Range<usize>,
    device: &Device,
) -> (Tensor<4>, Tensor<1, Int>) {
    const PIXELS: usize = 3 * 32 * 32;
    let pixel = |index: usize| (78.233 * index as f64).sin() as f32;
    let values: Vec<f32> = (range.start * PIXELS..range.end * PIXELS).map(pixel).collect();
    let images = TensorData::new(values, [range.len(), 3, 32, 32]);
    let classes: Vec<i64> = range.map(|sample| (sample * 3 % 10) as i64).collect();
    (Tensor::from_data(images, device), Tensor::from_data(classes.as_slice(), device))
}
