//! Gradient hooks: when they fire, what they hand out, and what they leave alone.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, ReduceOp, local};
use bonfire_tensor::collective::all_reduce;
use bonfire_tensor::hook::{Anchors, Gradient, GradientSink, hook_parameters};
use bonfire_tensor::parameters;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use std::sync::{Arc, Mutex};

const WIDTH: usize = 6;
const BATCH: usize = 5;

#[test]
fn hooks_fire_layer_by_layer_before_the_work_of_earlier_layers() {
    // A collective behind the first layer shows when the backward pass comes by: it sends bytes.
    local::spawn(2, |group| {
        let device = device();
        let model = Deep::new(6, &device);
        let (replica, recorder) = hooked(&model, &device, Some(group.clone()));
        let loss =
            replica.loss(input(0, &device), |x| all_reduce(x, &group, ReduceOp::Sum).unwrap());
        recorder.start();
        drop(loss.backward());

        let arrivals = recorder.arrivals();
        let order: Vec<usize> = arrivals.iter().map(|arrival| arrival.index).collect();
        assert_eq!(order, (0..12).rev().collect::<Vec<_>>());
        for Arrival { index, behind_collective, .. } in arrivals {
            // Hook k lies k + 2 levels deep, the collective 6: the hooks of the second and third
            // layer may fire on either side of it.
            match index / 2 {
                0 => assert!(behind_collective, "hook {index} fired too early"),
                3.. => assert!(!behind_collective, "hook {index} fired too late"),
                _ => {}
            }
        }
    });
}

#[test]
fn gradients_are_those_without_hooks() {
    let device = device();
    let model = Deep::new(3, &device);
    let loss = |model: &Deep| model.loss(input(0, &device), |x| x);
    same_gradients(&model, &device, loss);
}

#[test]
fn a_layer_used_twice_arrives_once() {
    let device = device();
    let model = linear(&device);
    let loss =
        |model: &Linear| model.forward(tanh(model.forward(input(0, &device)))).square().sum();
    assert_eq!(same_gradients(&model, &device, loss), 2);
}

#[test]
fn tied_parameters_arrive_once() {
    let device = device();
    let weight = linear(&device).weight;
    let model = Tied { encoder: weight.clone(), decoder: weight };
    let loss = |model: &Tied| {
        let code = tanh(input(0, &device).matmul(model.encoder.val()));
        code.matmul(model.decoder.val()).square().sum()
    };
    assert_eq!(same_gradients(&model, &device, loss), 1);
}

#[test]
fn running_statistics_are_those_without_hooks() {
    let device = device();
    let model = Normed::new(&device);
    let plain = copy_of(&model, &device);
    // An odd number: a running statistic lags behind by one update.
    for number in 0..3 {
        let (replica, _) = hooked(&model, &device, None);
        drop(replica.loss(input(number, &device)).backward());
        drop(plain.loss(input(number, &device)).backward());
    }
    let state = parameters::read(&model, |_| true).unwrap();
    assert_eq!(state, parameters::read(&plain, |_| true).unwrap());

    let restored = copy_of(&model, &device);
    assert_eq!(state, parameters::read(&restored, |_| true).unwrap());
    drop(hooked(&restored, &device, None));
    assert_eq!(state, parameters::read(&restored, |_| true).unwrap());
    drop(model.loss(input(3, &device)));
    drop(restored.loss(input(3, &device)));
    let state = parameters::read(&model, |_| true).unwrap();
    assert_eq!(state, parameters::read(&restored, |_| true).unwrap());
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// Some numbers, others for each `number`.
fn input(number: usize, device: &Device) -> Tensor<2> {
    let value = |k: usize| ((k * 37 + number * 11) % 23) as f32 / 11.5 - 1.0;
    let values: Vec<f32> = (0..BATCH * WIDTH).map(value).collect();
    Tensor::from_data(TensorData::new(values, [BATCH, WIDTH]), device)
}

fn linear(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(device)
}

/// Linear layers, each with tanh.
#[derive(Module, Debug)]
struct Deep {
    layers: Vec<Linear>,
}

impl Deep {
    fn new(layers: usize, device: &Device) -> Self {
        Self { layers: (0..layers).map(|_| linear(device)).collect() }
    }

    /// A loss; `behind_first` is applied behind the first layer.
    fn loss(&self, input: Tensor<2>, behind_first: impl Fn(Tensor<2>) -> Tensor<2>) -> Tensor<1> {
        let mut x = input;
        for (index, layer) in self.layers.iter().enumerate() {
            x = tanh(layer.forward(x));
            if index == 0 {
                x = behind_first(x);
            }
        }
        x.square().sum()
    }
}

/// One matrix in two places.
#[derive(Module, Debug)]
struct Tied {
    encoder: Param<Tensor<2>>,
    decoder: Param<Tensor<2>>,
}

/// A layer with running statistics behind another.
#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

impl Normed {
    fn new(device: &Device) -> Self {
        Self { linear: linear(device), norm: BatchNormConfig::new(WIDTH).init(device) }
    }

    fn loss(&self, input: Tensor<2>) -> Tensor<1> {
        tanh(self.norm.forward(self.linear.forward(input))).square().sum()
    }
}

/// Another module with the values of `model`, sharing no memory with it.
fn copy_of(model: &Normed, device: &Device) -> Normed {
    let state = parameters::read(model, |_| true).unwrap();
    parameters::write(Normed::new(device), state).unwrap()
}

/// A gradient that left the backward pass.
#[derive(Debug, Clone)]
struct Arrival {
    index: usize,
    values: Vec<f32>,
    /// Whether the group had sent anything since the start of the backward pass.
    behind_collective: bool,
}

/// Keeps the gradients in the order of their arrival.
struct Recorder {
    lens: Vec<usize>,
    group: Option<ProcessGroup>,
    sent: Mutex<u64>,
    arrivals: Mutex<Vec<Arrival>>,
}

impl Recorder {
    /// Marks the start of the backward pass.
    fn start(&self) {
        *self.sent.lock().unwrap() = self.bytes_sent();
    }

    fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap().clone()
    }

    fn bytes_sent(&self) -> u64 {
        self.group.as_ref().map_or(0, ProcessGroup::bytes_sent)
    }
}

impl GradientSink for Recorder {
    fn gradient(&self, index: usize, gradient: Gradient) {
        let behind_collective = self.bytes_sent() > *self.sent.lock().unwrap();
        let mut values = vec![0.0; self.lens[index]];
        gradient.write_to(&mut values, false).unwrap();
        self.arrivals.lock().unwrap().push(Arrival { index, values, behind_collective });
    }
}

/// A hooked clone of `model`, and what records its gradients.
fn hooked<M: Module>(
    model: &M,
    device: &Device,
    group: Option<ProcessGroup>,
) -> (M, Arc<Recorder>) {
    let specs = parameters::trainable(&parameters::inspect(model).unwrap());
    let recorder = Arc::new(Recorder {
        lens: specs.iter().map(parameters::ParameterSpec::num_elements).collect(),
        group,
        sent: Mutex::new(0),
        arrivals: Mutex::new(Vec::new()),
    });
    let sink: Arc<dyn GradientSink> = recorder.clone();
    let anchors = Anchors::new(specs.len(), device);
    (hook_parameters(model.clone(), &anchors, &sink, None), recorder)
}

/// Asserts that every gradient arrives once with the bits it has without hooks, and returns their
/// number.
fn same_gradients<M: Module>(model: &M, device: &Device, loss: impl Fn(&M) -> Tensor<1>) -> usize {
    let (replica, recorder) = hooked(model, device, None);
    drop(loss(&replica).backward());
    let mut arrivals = recorder.arrivals();
    arrivals.sort_by_key(|arrival| arrival.index);

    let gradients = loss(model).backward();
    let mut plain = PlainGradients { gradients: &gradients, seen: Vec::new(), values: Vec::new() };
    model.visit(&mut plain);
    assert!(plain.values.iter().flatten().any(|value| *value != 0.0));
    let indices: Vec<usize> = arrivals.iter().map(|arrival| arrival.index).collect();
    assert_eq!(indices, (0..plain.values.len()).collect::<Vec<_>>());
    for (arrival, expected) in arrivals.iter().zip(&plain.values) {
        assert_eq!(&arrival.values, expected, "gradient {}", arrival.index);
    }
    arrivals.len()
}

/// Collects the gradients that Burn itself gives, each parameter's once, in visiting order.
struct PlainGradients<'a> {
    gradients: &'a Gradients,
    seen: Vec<burn::module::ParamId>,
    values: Vec<Vec<f32>>,
}

impl ModuleVisitor for PlainGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.seen.contains(&param.id) {
            return;
        }
        self.seen.push(param.id);
        let gradient = param.val().grad(self.gradients).unwrap();
        self.values.push(gradient.into_data().try_into_vec::<f32>().unwrap());
    }
}
