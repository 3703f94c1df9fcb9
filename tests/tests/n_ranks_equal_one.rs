//! The number of ranks changes nothing: the same global batches give the same losses.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::ProcessGroup;
use bonfire_tests::training::comparable_steps;
use bonfire_tests::{
    ExactFloats, Precision, Rule, Samples, Training, as_rank, assert_close, results, run_ranks,
};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
const STEPS: usize = 100;
/// Divisible by 1, 2, 3 and 4, and so is its half.
const GLOBAL_BATCH: usize = 48;
const RULES: [Rule; 2] = [Rule::Sgd, Rule::AdamW];
const MICRO_BATCHES: [usize; 2] = [1, 2];

#[test]
fn losses_agree_in_double_precision() {
    losses_agree(Precision::F64, "losses_agree_in_double_precision");
}

#[test]
fn losses_agree_in_single_precision() {
    losses_agree(Precision::F32, "losses_agree_in_single_precision");
}

fn losses_agree(precision: Precision, test: &str) {
    if as_rank(|group| all_losses(group, precision)) {
        return;
    }
    let one_rank: Vec<Vec<ExactFloats>> = results(&run_ranks(1, test, &[], DEADLINE));
    compare(precision, 1, &one_rank[0], &one_rank[0]);
    for world in 2..=4 {
        let ranks: Vec<Vec<ExactFloats>> = results(&run_ranks(world, test, &[], DEADLINE));
        for losses in ranks {
            compare(precision, world, &losses, &one_rank[0]);
        }
    }
}

/// Compares the losses of each run with those of one rank under the same rule and without
/// micro-batches.
fn compare(precision: Precision, world: usize, losses: &[ExactFloats], one_rank: &[ExactFloats]) {
    let steps = comparable_steps(precision, STEPS);
    for (index, losses) in losses.iter().enumerate() {
        let rule = RULES[index / MICRO_BATCHES.len()];
        let position = index % MICRO_BATCHES.len();
        let what = format!(
            "loss of {} in {} on {world} ranks with {} micro-batches",
            rule.name(),
            precision.name(),
            MICRO_BATCHES[position]
        );
        let expected = &one_rank[index - position];
        assert_close(&what, &losses.0[..steps], &expected.0[..steps], rule.tolerance(precision));
    }
}

/// The losses of every step, for each rule and, under each, for each number of micro-batches.
fn all_losses(group: &ProcessGroup, precision: Precision) -> Vec<ExactFloats> {
    let device = precision.device();
    let mut all = Vec::new();
    for rule in RULES {
        for micro_batches in MICRO_BATCHES {
            let mut training = Training::new(group, &device, rule, micro_batches).unwrap();
            let step = |step: usize| {
                let batch = Samples::synthetic(step * GLOBAL_BATCH..(step + 1) * GLOBAL_BATCH);
                training.step(&batch).unwrap()
            };
            all.push(ExactFloats((0..STEPS).map(step).collect()));
        }
    }
    all
}
