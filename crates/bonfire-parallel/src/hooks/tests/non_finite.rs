//! A gradient that is not finite reaches every rank, and is forgotten.

use super::*;

#[test]
fn what_is_not_finite_reaches_every_rank_and_training_recovers() {
    let buckets = one_bucket();
    let all = [with_error_feedback(), vec![Compression::Fp16, Compression::Bf16]].concat();
    for compression in all {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for path in ["last.weight", "last.bias", "conv.weight"] {
                let spoilt = |rank: usize, step: u64, of: &str, len: usize| {
                    let mut values = gradient(rank, step, of, len);
                    if rank == 1 && step == 1 && of == path {
                        values[len / 2] = odd;
                    }
                    values
                };
                let run = run(compression, 3, &buckets, 5);
                check(&run.outcome_of::<f64>(&spoilt), path);
                check(&run.outcome_of::<f32>(&spoilt), path);
            }
        }
    }
}

fn check(outcome: &Outcome, path: &str) {
    let segments = &one_bucket()[0];
    let segment = segments.iter().find(|segment| segment.path == path).unwrap();
    let spoilt = segment.range.start + segment.range.len() / 2;
    for (number, step) in outcome.steps.iter().enumerate() {
        if number == 1 {
            assert!(!step[0][spoilt].is_finite(), "{path}");
        } else {
            assert!(step[0].iter().all(|value| value.is_finite()), "step {number} {path}");
        }
    }
    for tensor in outcome.states.iter().flat_map(|state| state.tensors.values()) {
        assert!(wide(&tensor.data).iter().all(|value| value.is_finite()));
    }
    // The step after is a gradient again, and not the zero that a residual of zeros would give.
    assert!(outcome.steps[4][0].iter().any(|value| *value != 0.0));
}

#[test]
fn power_sgd_approximates_again_after_a_gradient_that_was_not_finite() {
    let buckets = [bucket(&[("w", &[20, 30])])];
    // A matrix of rank one, which its factors can be.
    let low_rank = |rank: usize, step: u64, _: &str, len: usize| -> Vec<f64> {
        let value = |k: usize| ((k / 30 + 1) * (k % 30 + rank + 1)) as f64;
        (0..len).map(|k| if step == 1 { f64::NAN } else { value(k) }).collect()
    };
    let outcome = run(power_sgd(1, true), 2, &buckets, 3).outcome_of::<f64>(&low_rank);
    let mean: Vec<f64> =
        (0..600).map(|k| ((k / 30 + 1) as f64) * ((k % 30) as f64 + 1.5)).collect();
    assert!(outcome.steps[1][0].iter().all(|value| value.is_nan()));
    assert_near(&outcome.steps[2][0], &mean, 1e-9);
}

#[test]
fn more_odd_elements_than_top_k_sends_leave_nothing_behind() {
    let buckets = [bucket(&[("a", &[50])])];
    let spoilt = |rank: usize, step: u64, path: &str, len: usize| match (rank, step) {
        (0, 1) => vec![f64::NAN; len],
        (1, 1) => vec![f64::NEG_INFINITY; len],
        _ => gradient(rank, step, path, len),
    };
    let run = run(Compression::TopK { ratio: 0.1 }, 2, &buckets, 3);
    let outcome = run.outcome_of::<f32>(&spoilt);
    assert_eq!(outcome.steps[1][0].iter().filter(|value| !value.is_finite()).count(), 5);
    assert!(outcome.steps[2][0].iter().all(|value| value.is_finite()));
}
