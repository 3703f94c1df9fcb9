//! `powerSGD` against a simulation of all ranks in one loop, with matrices as lists of rows.

use super::*;
use bonfire_tensor::state::{HostTensor, Scalar};

type Rows = Vec<Vec<f64>>;

fn product(a: &Rows, b: &Rows) -> Rows {
    let entry = |row: &Vec<f64>, j: usize| row.iter().zip(b).map(|(x, other)| x * other[j]).sum();
    a.iter().map(|row| (0..b[0].len()).map(|j| entry(row, j)).collect()).collect()
}

fn transposed(a: &Rows) -> Rows {
    (0..a[0].len()).map(|j| a.iter().map(|row| row[j]).collect()).collect()
}

fn mean(matrices: &[Rows]) -> Rows {
    let mut sum = matrices[0].clone();
    for other in &matrices[1..] {
        sum.iter_mut().flatten().zip(other.iter().flatten()).for_each(|(a, b)| *a += b);
    }
    sum.iter_mut().flatten().for_each(|value| *value /= matrices.len() as f64);
    sum
}

/// Gram-Schmidt as in the textbook.
fn orthonormal(a: &Rows) -> Rows {
    let mut columns: Rows = Vec::new();
    for mut column in transposed(a) {
        for other in &columns {
            let along: f64 = column.iter().zip(other).map(|(x, y)| x * y).sum();
            column.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
        }
        let norm = column.iter().map(|x| x * x).sum::<f64>().sqrt();
        columns.push(column.into_iter().map(|x| x / norm).collect());
    }
    transposed(&columns)
}

/// One matrix over some steps from a first Q (m rows).
fn simulated(ranks: usize, steps: u64, segment: &Segment, first: &Rows) -> Vec<Vec<f64>> {
    let cols = segment.range.len() / segment.shape[0];
    let mut residuals = vec![vec![0.0; segment.range.len()]; ranks];
    let (mut q, mut outputs) = (first.clone(), Vec::new());
    for step in 0..steps {
        let with_residual = |(rank, residual): (usize, &Vec<f64>)| -> Rows {
            let gradient = gradient(rank, step, &segment.path, segment.range.len());
            let sum: Vec<f64> = gradient.iter().zip(residual).map(|(a, b)| a + b).collect();
            sum.chunks(cols).map(<[f64]>::to_vec).collect()
        };
        let matrices: Vec<Rows> = residuals.iter().enumerate().map(with_residual).collect();
        q = orthonormal(&q);
        let ps: Vec<Rows> = matrices.iter().map(|m| product(m, &q)).collect();
        let p = orthonormal(&mean(&ps));
        let qs: Vec<Rows> = matrices.iter().map(|m| product(&transposed(m), &p)).collect();
        q = mean(&qs);
        let output: Vec<f64> = product(&p, &transposed(&q)).concat();
        for (residual, matrix) in residuals.iter_mut().zip(&matrices) {
            let values = matrix.iter().flatten().zip(&output);
            *residual = values.map(|(a, b)| a - b).collect();
        }
        outputs.push(output);
    }
    outputs
}

/// A state whose factors are given, for all ranks.
fn given(buckets: &[Vec<Segment>], rank: usize, ranks: usize) -> (Vec<State>, Vec<Rows>) {
    let (mut state, mut factors) = (State::default(), Vec::new());
    state.scalars.insert("steps".into(), Scalar::Uint(2));
    for segment in buckets.iter().flatten().filter(|segment| segment.shape.len() > 1) {
        let cols = segment.range.len() / segment.shape[0];
        let values = gradient(9, 99, &segment.path, rank * cols);
        factors.push(transposed(&values.chunks(cols).map(<[f64]>::to_vec).collect()));
        let tensor = HostTensor { shape: vec![rank, cols], data: values.into() };
        state.tensors.insert(format!("q/{}", segment.path), tensor);
    }
    (vec![state; ranks], factors)
}

#[test]
fn factors_and_residuals_are_those_of_the_paper() {
    let buckets = [bucket(&[("w", &[11, 9]), ("b", &[9]), ("c", &[6, 3, 3, 3])])];
    for (ranks, rank) in [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)] {
        let (states, factors) = given(&buckets, rank, ranks);
        let base = run(power_sgd(rank, true), ranks, &buckets, 5);
        let outcome = Run { from: &states, ..base }.outcome::<f64>();
        for (segment, factor) in [&buckets[0][0], &buckets[0][2]].into_iter().zip(&factors) {
            let expected = simulated(ranks, 5, segment, factor);
            for (step, expected) in outcome.steps.iter().zip(&expected) {
                assert_near(&step[0][segment.range.clone()], expected, 1e-9);
            }
        }
        let bias = &buckets[0][1];
        for (number, step) in outcome.steps.iter().enumerate() {
            let of = |rank| vec![gradient(rank, number as u64, "b", 9)];
            let mean = mean(&(0..ranks).map(of).collect::<Vec<_>>());
            assert_near(&step[0][bias.range.clone()], &mean[0], 1e-12);
        }
    }
}

#[test]
fn single_precision_stays_near_double() {
    let buckets = one_bucket();
    let run = run(power_sgd(2, true), 3, &buckets, 4);
    let (exact, single) = (run.outcome::<f64>(), run.outcome::<f32>());
    for (exact, single) in exact.steps.iter().zip(&single.steps) {
        assert_near(&single[0], &exact[0], 1e-3);
    }
}

#[test]
fn warm_start_finds_a_matrix_that_stays_and_zero_gradients_do_no_harm() {
    let buckets = [bucket(&[("w", &[30, 20])])];
    let changing = |_: usize, step: u64, path: &str, len: usize| match step {
        0 => vec![0.0; len],
        _ => gradient(0, 7, path, len),
    };
    let mut compression = power_sgd(1, true);
    if let Compression::PowerSgd { use_error_feedback, .. } = &mut compression {
        *use_error_feedback = false;
    }
    let outcome = run(compression, 2, &buckets, 60).outcome_of::<f64>(&changing);
    assert!(outcome.steps[0][0].iter().all(|value| *value == 0.0));
    let matrix = gradient(0, 7, "w", 600);
    let error = |step: &Step| -> f64 {
        step[0].iter().zip(&matrix).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    };
    let errors: Vec<f64> = outcome.steps[1..].iter().map(error).collect();
    assert!(errors.windows(2).all(|pair| pair[1] <= pair[0] + 1e-12), "{errors:?}");
    assert!(errors[58] < 0.97 * errors[0], "{errors:?}");
}

#[test]
fn without_warm_start_every_step_draws_anew() {
    let buckets = [bucket(&[("w", &[30, 20])])];
    let same = |_: usize, _: u64, path: &str, len: usize| gradient(0, 7, path, len);
    let mut compression = power_sgd(1, false);
    if let Compression::PowerSgd { use_error_feedback, .. } = &mut compression {
        *use_error_feedback = false;
    }
    let outcome = run(compression, 2, &buckets, 3).outcome_of::<f64>(&same);
    assert_ne!(outcome.steps[0], outcome.steps[1]);
    assert_ne!(outcome.steps[1], outcome.steps[2]);
}
