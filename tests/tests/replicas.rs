//! Replicas that have drifted apart are found.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::local;
use bonfire_parallel::{DataParallel, DataParallelConfig, ParallelError, SgdConfig};
use bonfire_tensor::state::Stateful;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

fn step(parallel: &mut DataParallel<Linear>) -> Result<(), ParallelError> {
    let x = Tensor::<2>::ones([1, 2], &Device::flex().autodiff());
    let loss = parallel.replica()?.forward(x).sum();
    parallel.backward(loss)?;
    parallel.step(&mut SgdConfig::new().init()?, 0.1).map(drop)
}

#[test]
fn the_first_difference_is_named_at_the_next_comparison() {
    let errors = local::spawn(3, |group| {
        let model = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
        let config = DataParallelConfig { check_replicas_every: 3, ..Default::default() };
        let mut parallel = DataParallel::new(model, &group, config).unwrap();
        step(&mut parallel).unwrap();
        if group.rank() == 2 {
            // What a wrong update on one rank would do.
            let mut state = parallel.state().unwrap();
            let bias = state.tensors.get_mut("bias").unwrap();
            bias.data.as_bytes_mut()[2] ^= 1;
            parallel.load_state(state).unwrap();
        }
        step(&mut parallel).unwrap();
        step(&mut parallel).unwrap_err()
    });
    for error in errors {
        assert!(
            matches!(&error, ParallelError::ReplicasDiffer { step: 3, rank: 2, path } if path == "bias"),
            "{error}"
        );
    }
}
