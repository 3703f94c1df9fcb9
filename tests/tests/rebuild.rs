//! Buckets follow the order in which gradients arrive, not that of the fields.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, local};
use bonfire_parallel::{AdamWConfig, DataParallel, DataParallelConfig, FlatOptimizer};
use bonfire_tensor::state::Stateful;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Tensor};

/// Used in the order c, a, b; `idle` never.
#[derive(Module, Debug)]
struct Shuffled {
    a: Linear,
    b: Linear,
    c: Linear,
    idle: Linear,
}

impl Shuffled {
    fn new(seed: u64, device: &Device) -> Self {
        device.seed(seed);
        let linear = || LinearConfig::new(8, 8).with_bias(false).init(device);
        Self { a: linear(), b: linear(), c: linear(), idle: linear() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.b.forward(self.a.forward(self.c.forward(x).tanh()).tanh())
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// A bucket for each parameter.
fn config() -> DataParallelConfig {
    DataParallelConfig {
        first_bucket_mb: 1e-6,
        bucket_cap_mb: 1e-6,
        find_unused_parameters: true,
        ..DataParallelConfig::default()
    }
}

fn paths<M: Module>(parallel: &DataParallel<M>) -> Vec<String> {
    parallel.layout().segments().map(|(_, segment)| segment.path.clone()).collect()
}

fn step(parallel: &mut DataParallel<Shuffled>, optimizer: &mut dyn FlatOptimizer, number: usize) {
    let values: Vec<f32> = (0..8).map(|k| ((number * 8 + k) as f32).sin()).collect();
    let x = Tensor::<1>::from_data(values.as_slice(), &device()).reshape([1, 8]);
    let loss = parallel.replica().unwrap().forward(x).square().sum();
    parallel.backward(loss).unwrap();
    parallel.step(optimizer, 0.01).unwrap();
}

#[test]
fn the_first_step_finds_the_order_of_use() {
    local::spawn(2, |group| {
        let model = Shuffled::new(0, &device());
        let mut parallel = DataParallel::new(model, &group, config()).unwrap();
        assert_eq!(paths(&parallel), ["idle.weight", "c.weight", "b.weight", "a.weight"]);
        let mut optimizer = AdamWConfig::new().init().unwrap();
        for number in 0..3 {
            step(&mut parallel, &mut optimizer, number);
            let order = ["b.weight", "a.weight", "c.weight", "idle.weight"];
            assert_eq!(paths(&parallel), order, "after step {number}");
        }
    });
}

#[test]
fn a_rank_alone_keeps_a_bucket_for_each_parameter() {
    let group = ProcessGroup::single();
    let mut parallel = DataParallel::new(Shuffled::new(0, &device()), &group, config()).unwrap();
    let before = paths(&parallel);
    step(&mut parallel, &mut AdamWConfig::new().init().unwrap(), 0);
    assert_eq!(paths(&parallel), before);
}

#[test]
fn an_optimizer_with_a_past_moves_along() {
    local::spawn(2, |group| {
        let begin = |state: Option<(_, _)>| {
            let mut parallel =
                DataParallel::new(Shuffled::new(0, &device()), &group, config()).unwrap();
            let mut optimizer = AdamWConfig::new().init().unwrap();
            if let Some((model, moments)) = state {
                parallel.load_state(model).unwrap();
                parallel.optimizer_state(&mut optimizer).load_state(moments).unwrap();
            }
            (parallel, optimizer)
        };
        let (mut parallel, mut optimizer) = begin(None);
        for number in 0..2 {
            step(&mut parallel, &mut optimizer, number);
        }
        let moments = parallel.optimizer_state(&mut optimizer).state().unwrap();
        let (mut again, mut again_optimizer) = begin(Some((parallel.state().unwrap(), moments)));
        for number in 2..5 {
            step(&mut parallel, &mut optimizer, number);
            // Its first step rebuilds the buckets, with moments in them.
            step(&mut again, &mut again_optimizer, number);
        }
        assert_eq!(again.state().unwrap(), parallel.state().unwrap());
    });
}

/// Parameters of two types; `second` in f64.
#[derive(Module, Debug)]
struct Mixed {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
    third: Param<Tensor<1>>,
}

#[test]
fn parameters_of_different_types_lie_in_buckets_of_their_own() {
    local::spawn(2, |group| {
        let device = device();
        let tensor = |value: f32, dtype: FloatDType| {
            Param::from_tensor(
                Tensor::<1>::full([3], value, &device).cast(dtype).detach().require_grad(),
            )
        };
        let model = Mixed {
            first: tensor(1.0, FloatDType::F32),
            second: tensor(2.0, FloatDType::F64),
            third: tensor(3.0, FloatDType::F32),
        };
        let mut parallel = DataParallel::new(model, &group, DataParallelConfig::default()).unwrap();
        let mut optimizer = bonfire_parallel::SgdConfig::new().init().unwrap();
        for _ in 0..2 {
            let model = parallel.replica().unwrap();
            let scale = 1.0 + group.rank() as f64;
            let second = model.second.val().cast(FloatDType::F32);
            let sum = model.first.val() + second + model.third.val();
            parallel.backward(sum.sum().mul_scalar(scale)).unwrap();
            parallel.step(&mut optimizer, 1.0).unwrap();
        }
        assert_eq!(parallel.layout().buckets().len(), 2);
        let model = parallel.model();
        let values = |param: &Param<Tensor<1>>| {
            param.val().cast(FloatDType::F32).try_into_vec_as::<f32>().unwrap()
        };
        assert_eq!(values(&model.first), [-2.0; 3]);
        assert_eq!(values(&model.second), [-1.0; 3]);
        assert_eq!(values(&model.third), [0.0; 3]);
    });
}
