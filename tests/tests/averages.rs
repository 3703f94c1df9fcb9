//! Averages of weights, and the rate that goes with them, are PyTorch's; `golden/averages.py` says how
//! those were made.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{HostBuffer, ProcessGroup};
use bonfire_parallel::{Averaging, DataParallel, DataParallelConfig, ParameterAverage};
use bonfire_tensor::parameters;
use bonfire_tensor::state::{HostTensor, State};
use bonfire_tests::golden::numbers_of;
use bonfire_tests::{Precision, assert_close};
use bonfire_trainer::config::{AnnealStrategy, RunLength, Schedule, SchedulePlan, SwaRate};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use std::ops::Range;

static GOLDEN: &[u8] = include_bytes!("../golden/averages.safetensors");
const STEPS: usize = 40;
const SHAPES: [(&str, &[usize]); 6] = [
    ("first.bias", &[4]),
    ("first.weight", &[3, 4]),
    ("norm.beta", &[4]),
    ("norm.gamma", &[4]),
    ("norm.running_mean", &[4]),
    ("norm.running_var", &[4]),
];

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: BatchNorm,
}

/// The values after a step of the walk.
fn walk(step: usize) -> State {
    let mut state = State::default();
    for (path, shape) in SHAPES {
        let len: usize = shape.iter().product();
        let place: Range<usize> = step * len..(step + 1) * len;
        let values = numbers_of(GOLDEN, &format!("walk/{path}"))[place].to_vec();
        let tensor = HostTensor { shape: shape.to_vec(), data: HostBuffer::from(values) };
        state.tensors.insert(path.to_string(), tensor);
    }
    state
}

#[test]
fn averages_of_a_walk_are_those_of_pytorch() {
    let device = Precision::F64.device();
    let net = Net {
        first: LinearConfig::new(3, 4).init(&device),
        norm: BatchNormConfig::new(4).init(&device),
    };
    let alone = ProcessGroup::single();
    for (name, averaging) in
        [("ema", Averaging::Exponential { decay: 0.9 }), ("swa", Averaging::Equal)]
    {
        let mut average = ParameterAverage::new(averaging).unwrap();
        for step in 0..STEPS {
            let model = parameters::write(net.clone(), walk(step)).unwrap();
            let parallel = DataParallel::new(model, &alone, DataParallelConfig::default()).unwrap();
            average.update(&parallel.values()).unwrap();
        }
        let values = average.values().unwrap();
        for (path, _) in SHAPES {
            let found = values.tensors[path].data.as_slice::<f64>().unwrap();
            let name = format!("{name}/{path}");
            assert_close(&name, found, &numbers_of(GOLDEN, &name), 1e-12);
        }
    }
}

#[test]
fn the_rate_while_weights_are_averaged_is_that_of_pytorch() {
    let length = RunLength { steps_per_epoch: 4, total_steps: 72 };
    for (name, anneal_strategy) in
        [("cos", AnnealStrategy::Cos), ("linear", AnnealStrategy::Linear)]
    {
        // Three epochs at a constant rate, then ten to get to the new one.
        let swa = SwaRate { start_epoch: 3, lr: 0.05, anneal_epochs: 10, anneal_strategy };
        let plan = SchedulePlan { swa: Some(swa), ..SchedulePlan::default() };
        let schedule = Schedule::new(&plan, 0.4, length);
        let rates: Vec<f64> = (12..72).map(|step| schedule.lr(step)).collect();
        assert_close(name, &rates, &numbers_of(GOLDEN, &format!("rate/{name}")), 1e-12);
        assert!((0..12).all(|step| schedule.lr(step) == 0.4));
    }
}
