use super::*;
use crate::{DataParallel, DataParallelConfig, SgdConfig};
use bonfire_comm::ProcessGroup;
use bonfire_tensor::parameters;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: BatchNorm,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(3, 5).init(device),
            norm: BatchNormConfig::new(5).init(device),
            last: LinearConfig::new(5, 2).init(device),
        }
    }
}

fn training() -> (DataParallel<Net>, crate::Sgd) {
    let device = Device::flex().autodiff();
    let parallel = DataParallel::new(
        Net::new(&device),
        &ProcessGroup::single(),
        DataParallelConfig::default(),
    );
    (parallel.unwrap(), SgdConfig::new().with_momentum(0.9).init().unwrap())
}

fn train(parallel: &mut DataParallel<Net>, optimizer: &mut crate::Sgd) {
    let device = Device::flex().autodiff();
    let net = parallel.replica().unwrap();
    let x = Tensor::<2>::random([6, 3], Distribution::Default, &device);
    let y = net.last.forward(net.norm.forward(net.first.forward(x)));
    parallel.backward((y.clone() * y).mean()).unwrap();
    parallel.step(optimizer, 0.1).unwrap();
}

/// All values of a model as doubles, in path order.
fn numbers(state: &State) -> Vec<f64> {
    let tensors = state.tensors.values();
    tensors
        .flat_map(|tensor| tensor.data.as_slice::<f32>().unwrap().to_vec())
        .map(f64::from)
        .collect()
}

fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
}

#[test]
fn averages_follow_their_formulas_over_parameters_and_buffers() {
    for averaging in [Averaging::Exponential { decay: 0.7 }, Averaging::Equal] {
        let (mut parallel, mut optimizer) = training();
        let mut average = ParameterAverage::new(averaging).unwrap();
        let mut expected: Vec<f64> = Vec::new();
        for step in 0..5 {
            train(&mut parallel, &mut optimizer);
            average.update(&parallel.values()).unwrap();
            let new = numbers(&parameters::read(parallel.model(), |_| true).unwrap());
            let weight = match averaging {
                _ if step == 0 => 1.0,
                Averaging::Exponential { decay } => 1.0 - decay,
                Averaging::Equal => 1.0 / (step + 1) as f64,
            };
            if step == 0 {
                expected = vec![0.0; new.len()];
            }
            for (expected, new) in expected.iter_mut().zip(new) {
                *expected += weight * (new - *expected);
            }
        }
        close(&numbers(&average.values().unwrap()), &expected);
        // An average of nothing but the newest values would pass less than this.
        let newest = numbers(&parameters::read(parallel.model(), |_| true).unwrap());
        assert!(newest.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-3));
    }
}

#[test]
fn a_restored_average_goes_on_with_the_same_bits() {
    let (mut parallel, mut optimizer) = training();
    let mut whole = ParameterAverage::new(Averaging::Exponential { decay: 0.9 }).unwrap();
    let mut restored = ParameterAverage::new(Averaging::Exponential { decay: 0.9 }).unwrap();
    for step in 0..6 {
        train(&mut parallel, &mut optimizer);
        whole.update(&parallel.values()).unwrap();
        if step >= 3 {
            restored.update(&parallel.values()).unwrap();
        }
        if step == 2 {
            restored.load_state(whole.state().unwrap()).unwrap();
            assert_eq!(restored.state().unwrap(), whole.state().unwrap());
            assert_eq!(restored.values().unwrap(), whole.values().unwrap());
        }
    }
    assert_eq!(restored.state().unwrap(), whole.state().unwrap());
}

#[test]
fn averages_written_into_a_model_are_the_model() {
    let (mut parallel, mut optimizer) = training();
    let mut average = ParameterAverage::new(Averaging::Equal).unwrap();
    for _ in 0..3 {
        train(&mut parallel, &mut optimizer);
        average.update(&parallel.values()).unwrap();
    }
    let values = average.values().unwrap();
    let model = parameters::write(Net::new(&Device::flex()), values.clone()).unwrap();
    assert_eq!(parameters::read(&model, |_| true).unwrap(), values);
}

#[test]
fn an_impossible_decay_and_another_model_are_refused() {
    for decay in [-0.1, 1.1, f64::NAN] {
        let error = ParameterAverage::new(Averaging::Exponential { decay }).unwrap_err();
        assert!(error.to_string().contains("decay"), "{error}");
    }
    let (mut parallel, mut optimizer) = training();
    train(&mut parallel, &mut optimizer);
    let mut average = ParameterAverage::new(Averaging::Equal).unwrap();
    average.update(&parallel.values()).unwrap();
    let mut state = average.state().unwrap();
    state.tensors.remove("parameters.first.weight").unwrap();
    let mut other = ParameterAverage::new(Averaging::Equal).unwrap();
    other.load_state(state).unwrap();
    let error = other.update(&parallel.values()).unwrap_err();
    assert!(error.to_string().contains("first.weight"), "{error}");
}
