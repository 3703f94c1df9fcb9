//! Rates, parameter groups and label smoothing are PyTorch's; `golden/schedules.py` says how those
//! were made.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{HostBuffer, ProcessGroup, local};
use bonfire_nn::cross_entropy_smoothed;
use bonfire_parallel::{
    AdamWConfig, DataParallel, DataParallelConfig, FlatOptimizer, ParameterGroup, ParameterGroups,
    SgdConfig, ZeroStage,
};
use bonfire_tensor::state::{HostTensor, State, Stateful};
use bonfire_tests::training::numbers;
use bonfire_tests::{Precision, assert_close};
use bonfire_trainer::config::{Plan, RunConfig, RunLength, Schedule};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use std::sync::OnceLock;

static GOLDEN: &[u8] = include_bytes!("../golden/schedules.safetensors");
/// Epochs of the golden runs are 20 steps.
const LENGTH: RunLength = RunLength { steps_per_epoch: 20, total_steps: 1000 };

/// The schedule of a recipe with these lines in `[schedule]`.
fn schedule(lines: &str) -> Schedule {
    let text = format!(
        "[model]\nkind = \"mlp\"\n[data]\npath = \"data\"\n[train]\nmax_epochs = 50\n\
         [optimizer]\nkind = \"sgd\"\nlr = 0.4\nmomentum = 0.9\n[schedule]\n{lines}"
    );
    let plan = Plan::resolve(&RunConfig::from_toml_str(&text, "golden").unwrap(), 1).unwrap();
    Schedule::new(&plan.schedule, plan.optimizer.lr(), LENGTH)
}

/// The device in double precision, which a process can choose only once.
fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Precision::F64.device()).clone()
}

#[test]
fn rates_of_a_thousand_steps_are_those_of_pytorch() {
    let cases = [
        ("constant", ""),
        ("constant_warmup", "warmup_steps = 50"),
        ("step", "kind = \"step\"\nstep_size = 15\ngamma = 0.3"),
        (
            "step_warmup",
            "kind = \"step\"\nstep_size = 300\nunit = \"step\"\ngamma = 0.3\nwarmup_epochs = 2.5",
        ),
        ("multi_step", "kind = \"multi_step\"\nmilestones = [1, 15, 30, 40]"),
        (
            "multi_step_warmup",
            "kind = \"multi_step\"\nmilestones = [1, 15, 30, 40]\nwarmup_epochs = 2.5",
        ),
        ("cosine", "kind = \"cosine\"\nmin_lr = 0.001"),
        ("cosine_warmup", "kind = \"cosine\"\nmin_lr = 0.001\nwarmup_steps = 50"),
        ("polynomial", "kind = \"polynomial\"\npower = 2"),
        ("polynomial_warmup", "kind = \"polynomial\"\npower = 0.9\nwarmup_epochs = 2.5"),
        ("one_cycle", "kind = \"one_cycle\""),
        (
            "one_cycle_linear",
            "kind = \"one_cycle\"\nanneal_strategy = \"linear\"\npct_start = 0.25\n\
             div_factor = 10\nfinal_div_factor = 100\nbase_momentum = 0.8\nmax_momentum = 0.9",
        ),
    ];
    for (name, lines) in cases {
        let schedule = schedule(lines);
        let rates: Vec<f64> = (0..1000).map(|step| schedule.lr(step)).collect();
        assert_close(name, &rates, &golden(&format!("{name}/lr")), 1e-12);
        if name.starts_with("one_cycle") {
            let momentum: Vec<f64> =
                (0..1000).map(|step| schedule.momentum(step).unwrap()).collect();
            assert_close(name, &momentum, &golden(&format!("{name}/momentum")), 1e-12);
        }
    }
}

#[test]
fn rates_on_plateaus_are_those_of_pytorch() {
    let cases = [
        ("default", ""),
        ("max", "mode = \"max\"\nfactor = 0.5\npatience = 3\ncooldown = 2\nmin_lr = 0.01"),
        ("abs", "factor = 0.3\npatience = 2\nthreshold = 0.05\nthreshold_mode = \"abs\""),
    ];
    for (name, lines) in cases {
        let mut schedule = schedule(&format!("kind = \"reduce_on_plateau\"\n{lines}"));
        let rates: Vec<f64> = golden(&format!("plateau/{name}/losses"))
            .into_iter()
            .map(|loss| {
                schedule.observe(loss);
                schedule.lr(0)
            })
            .collect();
        let expected = golden(&format!("plateau/{name}/lr"));
        assert!(expected[199] < expected[0], "{name}: the golden rate falls");
        assert_close(name, &rates, &expected, 1e-12);
    }
}

#[test]
fn smoothed_losses_and_their_gradients_are_those_of_pytorch() {
    let device = device();
    for smoothing in [0.0, 0.1, 1.0] {
        let values = TensorData::new(golden("smoothing/logits"), [7, 5]);
        let logits = Tensor::<2>::from_data(values, &device).require_grad();
        let targets = classes("smoothing/targets", &device);
        let loss = cross_entropy_smoothed(logits.clone(), targets, smoothing);
        let gradients = loss.clone().backward();
        let gradient = floats(logits.grad(&gradients).unwrap());
        let name = format!("smoothing/{smoothing:.1}");
        assert_close(&name, &floats(loss), &golden(&format!("{name}/loss")), 1e-12);
        let expected = golden(&format!("{name}/gradient"));
        let largest = expected.iter().fold(0f64, |most, value| most.max(value.abs()));
        for (got, expected) in gradient.iter().zip(&expected) {
            assert!((got - expected).abs() <= 1e-12 * largest, "{name}: {got} {expected}");
        }
    }
}

#[derive(Module, Debug)]
struct Two {
    hidden: Linear,
    head: Linear,
}

const PATHS: [(&str, &[usize]); 4] = [
    ("hidden.weight", &[4, 6]),
    ("hidden.bias", &[6]),
    ("head.weight", &[6, 3]),
    ("head.bias", &[3]),
];

#[test]
fn training_with_parameter_groups_is_that_of_pytorch() {
    for rule in ["sgd", "adamw"] {
        for (ranks, zero_stage) in [
            (1, ZeroStage::Off),
            (2, ZeroStage::Off),
            (3, ZeroStage::Optimizer),
            (2, ZeroStage::Gradients),
        ] {
            let what = format!("{rule}, {ranks} ranks, {zero_stage:?}");
            for (losses, state) in
                local::spawn(ranks, |group| train_in_groups(rule, zero_stage, &group))
            {
                let expected = golden(&format!("groups/{rule}/losses"));
                assert_close(&what, &losses, &expected, 1e-10);
                let got = numbers(&state);
                for (path, _) in PATHS {
                    let expected = golden(&format!("groups/{rule}/after/{path}"));
                    assert_close(&format!("{what} {path}"), &got[path], &expected, 1e-9);
                }
            }
        }
    }
}

/// Every rank trains on the whole batch, so that any number of ranks is as one.
fn train_in_groups(rule: &str, zero_stage: ZeroStage, group: &ProcessGroup) -> (Vec<f64>, State) {
    let device = device();
    let parameter_groups = ParameterGroups::new()
        .with_group(ParameterGroup::matching("head.*").with_lr_factor(10.0))
        .with_no_decay_on_norms_and_biases(true);
    let config =
        DataParallelConfig { parameter_groups, zero_stage, ..DataParallelConfig::default() };
    let layer = |input, output| LinearConfig::new(input, output).init(&device);
    let model = Two { hidden: layer(4, 6), head: layer(6, 3) };
    let mut parallel = DataParallel::new(model, group, config).unwrap();
    let mut state = State::default();
    for (path, shape) in PATHS {
        let data = HostBuffer::from(golden(&format!("groups/{rule}/before/{path}")));
        state.tensors.insert(path.to_string(), HostTensor { shape: shape.to_vec(), data });
    }
    parallel.load_state(state).unwrap();
    let mut optimizer: Box<dyn FlatOptimizer> = match rule {
        "sgd" => {
            let config = SgdConfig::new().with_momentum(0.9).with_nesterov(true);
            Box::new(config.with_weight_decay(0.1).init().unwrap())
        }
        _ => Box::new(AdamWConfig::new().with_weight_decay(0.1).init().unwrap()),
    };
    let features = TensorData::new(golden(&format!("groups/{rule}/features")), [8, 4]);
    let mut losses = Vec::new();
    for step in 0..30 {
        let model = parallel.replica().unwrap();
        let features = Tensor::<2>::from_data(features.clone(), &device);
        let logits = model.head.forward(model.hidden.forward(features));
        let targets = classes(&format!("groups/{rule}/targets"), &device);
        let loss = cross_entropy_smoothed(logits, targets, 0.1);
        losses.extend(floats(loss.clone()));
        parallel.backward(loss).unwrap();
        let rate = 0.02 * 0.3f64.powi(step / 10);
        parallel.step(optimizer.as_mut(), rate).unwrap();
    }
    (losses, parallel.state().unwrap())
}

#[test]
fn a_pattern_without_parameters_is_an_error_on_every_rank() {
    let errors = local::spawn(2, |group| {
        let device = device();
        let groups = ParameterGroups::new().with_group(ParameterGroup::matching("haed.*"));
        let config = DataParallelConfig { parameter_groups: groups, ..Default::default() };
        let layer = |input, output| LinearConfig::new(input, output).init(&device);
        let model = Two { hidden: layer(4, 6), head: layer(6, 3) };
        DataParallel::new(model, &group, config).err().unwrap().to_string()
    });
    for error in errors {
        assert!(error.contains("\"haed.*\") matches no parameter"), "{error}");
        assert!(error.contains("\"head.weight\""), "{error}");
    }
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.without_autodiff().try_into_vec_as::<f64>().unwrap()
}

fn classes(name: &str, device: &Device) -> Tensor<1, Int> {
    let golden = SafeTensors::deserialize(GOLDEN).unwrap();
    let view = golden.tensor(name).unwrap();
    let words =
        view.data().chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().unwrap()));
    let values: Vec<i64> = words.collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

fn golden(name: &str) -> Vec<f64> {
    let golden = SafeTensors::deserialize(GOLDEN).unwrap();
    let view = golden.tensor(name).unwrap();
    let words = view.data().chunks_exact(8);
    words.map(|word| f64::from_le_bytes(word.try_into().unwrap())).collect()
}
