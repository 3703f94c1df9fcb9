//! Every way to synchronise equals one process on the same samples, in f64 within 1e-9.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ProcessGroup, fake, local};
use bonfire_tests::semantics::compare_all;
use bonfire_tests::{Precision, as_rank, is_rank, results, run_ranks};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn two_ranks_equal_one_process() {
    check_on(2, "two_ranks_equal_one_process");
}

#[test]
fn three_ranks_equal_one_process() {
    check_on(3, "three_ranks_equal_one_process");
}

fn check_on(world: usize, test: &str) {
    if as_rank(|group: &ProcessGroup| compare_all(group, &Precision::F64.device(), false)) {
        return;
    }
    results::<()>(&run_ranks(world, test, &[], DEADLINE));
}

/// The same on devices, whose memory no host touches, and on devices that an engine on host memory
/// connects. In a process of its own, since it is in double precision.
#[test]
fn ranks_on_devices_equal_one_process() {
    let test = "ranks_on_devices_equal_one_process";
    let run = |_: &ProcessGroup| {
        let device = Precision::F64.device();
        for world in [2, 3] {
            fake::spawn(world, |group, _| compare_all(&group, &device, true));
            local::spawn(world, |group| compare_all(&group, &device, true));
        }
    };
    if is_rank() {
        assert!(as_rank(run));
        return;
    }
    results::<()>(&run_ranks(1, test, &[], DEADLINE));
}
