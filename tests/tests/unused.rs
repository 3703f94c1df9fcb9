//! Parameters without a gradient: the errors, and what a static graph promises.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, local};
use bonfire_parallel::{
    Compression, DataParallel, DataParallelConfig, LocalSgd, ParallelError, SgdConfig,
};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
struct Branches {
    left: Linear,
    right: Linear,
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn branches(group: &ProcessGroup, config: DataParallelConfig) -> DataParallel<Branches> {
    let linear = || LinearConfig::new(2, 1).init(&device());
    DataParallel::new(Branches { left: linear(), right: linear() }, group, config).unwrap()
}

/// Runs one window in which a rank uses the left branch, and the right one if `both`.
fn window(parallel: &mut DataParallel<Branches>, both: bool) -> Result<(), ParallelError> {
    let replica = parallel.replica()?;
    let x = || Tensor::<2>::ones([1, 2], &device());
    let mut loss = replica.left.forward(x()).sum();
    if both {
        loss = loss + replica.right.forward(x()).sum();
    }
    parallel.backward(loss)?;
    parallel.step(&mut SgdConfig::new().init()?, 0.1).map(drop)
}

#[test]
fn every_rank_is_told_the_parameters_and_the_ranks() {
    let errors = local::spawn(3, |group| {
        let mut parallel = branches(&group, DataParallelConfig::default());
        window(&mut parallel, true).unwrap();
        window(&mut parallel, group.rank() == 1).unwrap_err().to_string()
    });
    for error in &errors {
        assert_eq!(error, &errors[0]);
        for part in ["right.weight", "right.bias", "ranks 0, 2", "find_unused_parameters"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
        assert!(!error.contains("left"), "{error}");
    }
}

#[test]
fn different_parameters_on_different_ranks_are_told_apart() {
    let errors = local::spawn(2, |group| {
        let mut parallel = branches(&group, DataParallelConfig::default());
        let replica = parallel.replica().unwrap();
        let branch = if group.rank() == 0 { &replica.left } else { &replica.right };
        let loss = branch.forward(Tensor::<2>::ones([1, 2], &device())).sum();
        parallel.backward(loss).unwrap();
        parallel.synchronize().unwrap_err()
    });
    for error in errors {
        let ParallelError::UnusedParameters { ranks } = error else { panic!("{error}") };
        let paths = |name: &str| vec![format!("{name}.weight"), format!("{name}.bias")];
        let sorted = |(rank, mut paths): (usize, Vec<String>)| {
            paths.sort_by(|a, b| b.cmp(a));
            (rank, paths)
        };
        let ranks: Vec<_> = ranks.into_iter().map(sorted).collect();
        assert_eq!(ranks, [(0, paths("right")), (1, paths("left"))]);
    }
}

#[test]
fn a_parameter_that_no_rank_used_is_left_as_it_is() {
    local::spawn(2, |group| {
        let config = DataParallelConfig { find_unused_parameters: true, ..Default::default() };
        let mut parallel = branches(&group, config);
        let weights = |parallel: &DataParallel<Branches>| {
            parallel.model().right.weight.val().try_into_vec_as::<f32>().unwrap()
        };
        let before = weights(&parallel);
        let mut sgd = SgdConfig::new().with_weight_decay(0.5).init().unwrap();
        for _ in 0..2 {
            let replica = parallel.replica().unwrap();
            let x = Tensor::<2>::ones([1, 2], &device());
            parallel.backward(replica.left.forward(x).sum()).unwrap();
            parallel.step(&mut sgd, 0.1).unwrap();
        }
        assert_eq!(weights(&parallel), before);
    });
}

fn static_graph() -> DataParallelConfig {
    DataParallelConfig { static_graph: true, ..Default::default() }
}

#[test]
fn a_static_graph_that_grows_is_an_error_on_every_rank() {
    let errors = local::spawn(2, |group| {
        let mut parallel = branches(&group, static_graph());
        window(&mut parallel, false).unwrap();
        window(&mut parallel, group.rank() == 1).unwrap_err().to_string()
    });
    assert!(errors[1].contains("static_graph") && errors[1].contains("right."), "{errors:?}");
    assert!(errors[0].contains("rank 1") && errors[0].contains("static_graph"), "{errors:?}");
}

#[test]
fn a_static_graph_that_shrinks_is_an_error_on_every_rank() {
    let errors = local::spawn(2, |group| {
        let mut parallel = branches(&group, static_graph());
        window(&mut parallel, true).unwrap();
        window(&mut parallel, group.rank() == 1).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("right.weight") && error.contains("rank 0"), "{error}");
    }
}

#[test]
fn a_rank_without_samples_in_the_first_window_promises_nothing_yet() {
    local::spawn(2, |group| {
        let mut parallel = branches(&group, static_graph());
        let mut sgd = SgdConfig::new().init().unwrap();
        if group.rank() == 0 {
            window(&mut parallel, false).unwrap();
        } else {
            parallel.backward_without_samples().unwrap();
            parallel.step(&mut sgd, 0.1).unwrap();
        }
        for _ in 0..3 {
            window(&mut parallel, group.rank() == 1).unwrap();
        }
    });
}

#[test]
fn what_a_hook_owes_to_a_parameter_is_paid_when_no_rank_uses_it() {
    local::spawn(2, |group| {
        let config = DataParallelConfig {
            find_unused_parameters: true,
            // One element of the six a step.
            compression: Compression::TopK { ratio: 0.01 },
            ..Default::default()
        };
        let mut parallel = branches(&group, config);
        let right = |parallel: &DataParallel<Branches>| {
            parallel.model().right.weight.val().try_into_vec_as::<f32>().unwrap()
        };
        window(&mut parallel, true).unwrap();
        window(&mut parallel, true).unwrap();
        let before = right(&parallel);
        for _ in 0..6 {
            parallel.backward_without_samples().unwrap();
            parallel.step(&mut SgdConfig::new().init().unwrap(), 0.1).unwrap();
        }
        let changes = right(&parallel).iter().zip(&before).map(|(a, b)| b - a).collect::<Vec<_>>();
        // The second window's gradient was 1 in each element, of which one at most was sent then.
        assert!(changes.iter().all(|change| *change >= 0.0), "{changes:?}");
        assert!(changes.iter().any(|change| (change - 0.1).abs() < 1e-6), "{changes:?}");
    });
}

#[test]
fn a_local_step_without_a_gradient_ends_all_ranks() {
    let errors = local::spawn(2, |group| {
        let config = DataParallelConfig { local_sgd: Some(LocalSgd::new(2)), ..Default::default() };
        let mut parallel = branches(&group, config);
        window(&mut parallel, true).unwrap();
        window(&mut parallel, true).unwrap();
        let first = window(&mut parallel, group.rank() == 1);
        first.and_then(|()| window(&mut parallel, true)).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("right.weight") && error.contains("rank 0"), "{error}");
    }
}
