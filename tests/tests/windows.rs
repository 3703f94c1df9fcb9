//! Windows of several micro-batches: what they gather, and how they are misused.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, local};
use bonfire_parallel::{DataParallel, DataParallelConfig, ParallelError, SgdConfig};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

/// Two branches, of which a loss may use one.
#[derive(Module, Debug)]
struct Branches {
    left: Linear,
    right: Linear,
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn branches(group: &ProcessGroup) -> DataParallel<Branches> {
    let linear = || LinearConfig::new(2, 1).with_bias(false).init(&device());
    let model = Branches { left: linear(), right: linear() };
    DataParallel::new(model, group, DataParallelConfig::default()).unwrap()
}

/// The loss whose gradient is `value` in both weights of the branch.
fn loss(branch: &Linear, value: f32) -> Tensor<1> {
    branch.forward(Tensor::<2>::full([1, 2], value, &device())).sum()
}

fn gradient(parallel: &DataParallel<Branches>, path: &str) -> Vec<f32> {
    parallel.gradient::<2>(path).unwrap().try_into_vec_as::<f32>().unwrap()
}

#[test]
fn a_parameter_used_only_before_the_last_micro_batch_is_reduced_too() {
    local::spawn(2, |group| {
        let mut parallel = branches(&group);
        let rank = group.rank() as f32;
        for _ in 0..2 {
            parallel.no_sync(|parallel| {
                let replica = parallel.replica().unwrap();
                parallel.backward(loss(&replica.left, 1.0 + rank)).unwrap();
            });
            let replica = parallel.replica().unwrap();
            parallel.backward(loss(&replica.right, 10.0 + rank)).unwrap();
            parallel.synchronize().unwrap();
            assert_eq!(gradient(&parallel, "left.weight"), [1.5, 1.5]);
            assert_eq!(gradient(&parallel, "right.weight"), [10.5, 10.5]);
            parallel.step(&mut SgdConfig::new().init().unwrap(), 0.1).unwrap();
        }
    });
}

#[test]
fn a_second_communicating_backward_pass_is_refused_and_loses_nothing() {
    local::spawn(2, |group| {
        let mut parallel = branches(&group);
        let both = |parallel: &mut DataParallel<Branches>| {
            let replica = parallel.replica().unwrap();
            loss(&replica.left, 2.0) + loss(&replica.right, 3.0)
        };
        let first = both(&mut parallel);
        parallel.backward(first).unwrap();
        let second = both(&mut parallel);
        let error = parallel.backward(second).unwrap_err();
        assert!(matches!(error, ParallelError::WindowOver { .. }), "{error}");
        assert!(error.to_string().contains("call step"), "{error}");
        parallel.synchronize().unwrap();
        assert_eq!(gradient(&parallel, "right.weight"), [3.0, 3.0]);
        parallel.step(&mut SgdConfig::new().init().unwrap(), 0.1).unwrap();
        let again = both(&mut parallel);
        parallel.backward(again).unwrap();
    });
}

#[test]
fn a_step_without_a_backward_pass_is_an_error() {
    let mut parallel = branches(&ProcessGroup::single());
    let error = parallel.step(&mut SgdConfig::new().init().unwrap(), 0.1).unwrap_err();
    assert!(matches!(error, ParallelError::NoGradients { .. }), "{error}");
}

#[derive(Module, Debug)]
struct Normalised {
    norm: BatchNorm,
    head: Linear,
}

fn normalised(group: &ProcessGroup, config: DataParallelConfig) -> DataParallel<Normalised> {
    let model = Normalised {
        norm: BatchNormConfig::new(1).init(&device()),
        head: LinearConfig::new(1, 1).init(&device()),
    };
    DataParallel::new(model, group, config).unwrap()
}

/// Running means that each forward pass of a window of two micro-batches begins with.
fn running_means(group: &ProcessGroup) -> Vec<f32> {
    let mut parallel = normalised(group, DataParallelConfig::default());
    let mut optimizer = SgdConfig::new().init().unwrap();
    let mut seen = Vec::new();
    let mut micro_batch = |parallel: &mut DataParallel<Normalised>| {
        let replica = parallel.replica().unwrap();
        seen.push(replica.norm.running_mean.value_sync().into_scalar::<f32>());
        let offset = 100.0 * (group.rank() as f32 + 1.0);
        let x = Tensor::<2>::from_data([[offset], [offset + 2.0]], &device());
        let loss = replica.head.forward(replica.norm.forward(x)).sum();
        parallel.backward(loss).unwrap();
    };
    for _ in 0..2 {
        parallel.no_sync(&mut micro_batch);
        micro_batch(&mut parallel);
        parallel.step(&mut optimizer, 0.1).unwrap();
    }
    seen
}

/// As PyTorch: rank 0's statistics before the first forward pass of a window, not within it.
#[test]
fn running_statistics_are_broadcast_at_the_first_micro_batch_of_a_window() {
    let means = local::spawn(2, |group| running_means(&group));
    let [zero, one] = &means[..] else { panic!("{means:?}") };
    assert_eq!(zero[0], one[0], "{means:?}");
    assert_ne!(zero[1], one[1], "{means:?}");
    assert_eq!(zero[2], one[2], "{means:?}");
    assert_ne!(zero[2], 0.0, "{means:?}");
    assert_ne!(zero[3], one[3], "{means:?}");
}

#[test]
fn without_broadcasts_running_statistics_are_a_rank_s_own_until_they_are_saved() {
    let means = local::spawn(2, |group| {
        let config = DataParallelConfig { broadcast_buffers: false, ..Default::default() };
        let mut parallel = normalised(&group, config);
        for _ in 0..3 {
            let replica = parallel.replica().unwrap();
            let offset = 100.0 * (group.rank() as f32 + 1.0);
            let x = Tensor::<2>::from_data([[offset], [offset + 2.0]], &device());
            parallel.backward(replica.head.forward(replica.norm.forward(x)).sum()).unwrap();
            parallel.step(&mut SgdConfig::new().init().unwrap(), 0.1).unwrap();
        }
        let mean = |parallel: &DataParallel<Normalised>| {
            parallel.model().valid().norm.running_mean.value_sync().into_scalar::<f32>()
        };
        let own = mean(&parallel);
        parallel.synchronize_buffers().unwrap();
        (own, mean(&parallel))
    });
    let [zero, one] = &means[..] else { panic!("{means:?}") };
    assert!(one.0 > 1.5 * zero.0, "{means:?}");
    assert_eq!((zero.1, one.1), (zero.0, zero.0), "{means:?}");
}
