//! Residual networks have torchvision's parameters and PyTorch's scores, gradients and statistics.
//!
//! `golden/resnet.py` says what the golden files hold.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::HostBuffer;
use bonfire_models::resnet::Stem;
use bonfire_models::{ResNet, ResNetConfig};
use bonfire_nn::{ImageClassifier, ImageShape, NormKind, cross_entropy};
use bonfire_tensor::parameters::{self, Role};
use bonfire_tensor::state::{HostTensor, State};
use bonfire_tests::training::numbers;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use std::collections::BTreeMap;

const CLASSES: usize = 5;

/// Largest difference, relative to the largest number of a tensor.
const TOLERANCE: f64 = 1e-4;

macro_rules! golden {
    ($case:literal) => {
        Golden::new(include_bytes!(concat!("../golden/resnet_", $case, ".safetensors")))
    };
}

#[test]
fn basic_blocks_after_the_stem_for_small_images() {
    check(&golden!("basic"), &ResNetConfig { depth: 8, width: Some(4), ..Default::default() });
}

#[test]
fn bottlenecks() {
    let config = ResNetConfig { depth: 50, width: Some(2), ..Default::default() };
    check(&golden!("bottleneck"), &config);
}

#[test]
fn basic_blocks_after_the_stem_for_large_images() {
    let config =
        ResNetConfig { depth: 18, stem: Stem::Imagenet, width: Some(2), ..Default::default() };
    check(&golden!("imagenet"), &config);
}

#[test]
fn group_norm() {
    let config = ResNetConfig {
        depth: 8,
        width: Some(4),
        norm: NormKind::Group,
        norm_groups: 2,
        ..Default::default()
    };
    check(&golden!("group"), &config);
}

#[test]
fn no_norm() {
    let config =
        ResNetConfig { depth: 8, width: Some(4), norm: NormKind::None, ..Default::default() };
    check(&golden!("none"), &config);
}

/// Runs one training step's forward and backward pass, and an evaluation.
fn check(golden: &Golden, config: &ResNetConfig) {
    let device = Device::flex().autodiff();
    let model = golden.model(config, &device);
    let logits = model.forward(golden.images(&device));
    let loss = cross_entropy(logits.clone(), golden.labels(&device));
    let gradients = loss.backward();

    golden.compare("logits", &floats(logits));
    golden.compare("loss", &floats(loss));
    golden.compare_all("gradient/", &read_gradients(&model, &gradients));
    let running = parameters::read(&model, |spec| spec.role == Role::Buffer).unwrap();
    golden.compare_all("after/", &numbers(&running));
    let device = Device::flex();
    golden.compare("evaluated", &floats(model.valid().forward(golden.images(&device))));
}

/// A golden file.
struct Golden(SafeTensors<'static>);

impl Golden {
    fn new(bytes: &'static [u8]) -> Self {
        Self(SafeTensors::deserialize(bytes).unwrap())
    }

    fn model(&self, config: &ResNetConfig, device: &Device) -> ResNet {
        let [_, channels, height, width] = self.shape("images");
        let image = ImageShape { channels, height, width };
        let model = config.init(image, CLASSES, device).unwrap();
        let mut state = State::default();
        for path in self.paths("before/") {
            let name = format!("before/{path}");
            let shape = self.0.tensor(&name).unwrap().shape().to_vec();
            state
                .tensors
                .insert(path, HostTensor { shape, data: HostBuffer::from(self.f32(&name)) });
        }
        let all: Vec<String> =
            parameters::inspect(&model).unwrap().into_iter().map(|spec| spec.path).collect();
        assert!(all.iter().all(|path| state.tensors.contains_key(path)), "{all:?}");
        parameters::write(model, state).unwrap()
    }

    fn images(&self, device: &Device) -> Tensor<4> {
        let shape: [usize; 4] = self.shape("images");
        Tensor::from_data(TensorData::new(self.f32("images"), shape), device)
    }

    fn labels(&self, device: &Device) -> Tensor<1, Int> {
        let view = self.0.tensor("labels").unwrap();
        let words = view.data().chunks_exact(8);
        let labels: Vec<i64> =
            words.map(|word| i64::from_le_bytes(word.try_into().unwrap())).collect();
        Tensor::from_data(labels.as_slice(), device)
    }

    /// Paths of the tensors whose names begin with `prefix`.
    fn paths(&self, prefix: &str) -> Vec<String> {
        let names = self.0.names().into_iter();
        names.filter_map(|name| name.strip_prefix(prefix)).map(str::to_string).collect()
    }

    fn shape<const D: usize>(&self, name: &str) -> [usize; D] {
        self.0.tensor(name).unwrap().shape().try_into().unwrap()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        let view = self.0.tensor(name).unwrap();
        let words = view.data().chunks_exact(4);
        words.map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    fn compare_all(&self, prefix: &str, got: &BTreeMap<String, Vec<f64>>) {
        let mut paths = self.paths(prefix);
        paths.sort();
        assert_eq!(got.keys().cloned().collect::<Vec<_>>(), paths);
        for (path, values) in got {
            self.compare(&format!("{prefix}{path}"), values);
        }
    }

    fn compare(&self, name: &str, got: &[f64]) {
        let expected: Vec<f64> = self.f32(name).into_iter().map(f64::from).collect();
        assert_eq!(got.len(), expected.len(), "{name}: number of values");
        let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert!(
                (got - expected).abs() <= TOLERANCE * largest,
                "{name}[{index}] is {got:e}, expected {expected:e}; the largest is {largest:e}"
            );
        }
    }
}

fn read_gradients(model: &ResNet, gradients: &Gradients) -> BTreeMap<String, Vec<f64>> {
    let mut reader = GradientReader { path: Vec::new(), gradients, found: BTreeMap::new() };
    model.visit(&mut reader);
    reader.found
}

struct GradientReader<'a> {
    path: Vec<String>,
    gradients: &'a Gradients,
    found: BTreeMap<String, Vec<f64>>,
}

impl ModuleVisitor for GradientReader<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.gradients) {
            self.found.insert(self.path.join("."), floats(gradient));
        }
    }
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Counts of torchvision's models, and for small images of those in `golden/resnet.py`.
#[test]
fn parameters_are_as_many_as_in_torchvision() {
    let large = |depth| ResNetConfig { depth, stem: Stem::Imagenet, ..Default::default() };
    let small = |depth| ResNetConfig { depth, ..Default::default() };
    for (config, size, classes, expected) in [
        (large(18), 224, 1000, 11_689_512),
        (large(34), 224, 1000, 21_797_672),
        (large(50), 224, 1000, 25_557_032),
        (large(101), 224, 1000, 44_549_160),
        (large(152), 224, 1000, 60_192_808),
        (small(8), 32, 10, 78_042),
        (small(18), 32, 10, 11_173_962),
        (ResNetConfig { norm: NormKind::Group, norm_groups: 16, ..small(8) }, 32, 10, 78_042),
        (ResNetConfig { norm: NormKind::None, ..small(8) }, 32, 10, 77_706),
    ] {
        let image = ImageShape { channels: 3, height: size, width: size };
        let model = config.init(image, classes, &Device::flex().autodiff()).unwrap();
        let specs = parameters::trainable(&parameters::inspect(&model).unwrap());
        let count: usize = specs.iter().map(|spec| spec.num_elements()).sum();
        assert_eq!(count, expected, "{config:?}");
    }
}
