//! The same seed and number of ranks give the same bits.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::ProcessGroup;
use bonfire_tests::{Precision, Rule, Samples, Training, as_rank, results, run_ranks};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
const STEPS: usize = 20;
const GLOBAL_BATCH: usize = 48;

#[test]
fn two_runs_end_with_the_same_bits_on_every_rank() {
    if as_rank(train) {
        return;
    }
    for world in [2, 3] {
        let run = || {
            let test = "two_runs_end_with_the_same_bits_on_every_rank";
            results::<u64>(&run_ranks(world, test, &[], DEADLINE))
        };
        let (first, second) = (run(), run());
        assert_eq!(first, vec![first[0]; world], "ranks of a world of {world} differ");
        assert_eq!(first, second, "two runs with {world} ranks differ");
    }
}

/// Returns the fingerprint of the parameters after some steps.
fn train(group: &ProcessGroup) -> u64 {
    let device = Precision::F32.device();
    let mut training = Training::new(group, &device, Rule::AdamW, 2).unwrap();
    let before = training.parallel.fingerprint().unwrap();
    for step in 0..STEPS {
        let batch = Samples::synthetic(step * GLOBAL_BATCH..(step + 1) * GLOBAL_BATCH);
        training.step(&batch).unwrap();
    }
    let after = training.parallel.fingerprint().unwrap();
    assert_ne!(before, after, "nothing was trained");
    after
}
