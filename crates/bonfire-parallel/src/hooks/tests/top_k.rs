//! `topk` against a simulation of all ranks in one loop.

use super::*;

fn simulated(ranks: usize, count: usize, len: usize, gradients: &[Vec<Vec<f64>>]) -> Vec<Vec<f64>> {
    let mut residuals = vec![vec![0.0; len]; ranks];
    let mut outputs = Vec::new();
    for step in gradients {
        let mut output = vec![0.0; len];
        for (residual, gradient) in residuals.iter_mut().zip(step) {
            residual.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
            let mut order: Vec<usize> = (0..len).collect();
            order.sort_by(|a, b| residual[*b].abs().total_cmp(&residual[*a].abs()));
            for index in &order[..count] {
                output[*index] += residual[*index] / ranks as f64;
                residual[*index] = 0.0;
            }
        }
        outputs.push(output);
    }
    outputs
}

fn check(
    ranks: usize,
    ratio: f64,
    count: usize,
    len: usize,
    gradient: &(dyn Fn(usize, u64, &str, usize) -> Vec<f64> + Sync),
) {
    let buckets = [bucket(&[("a", &[len])])];
    let gradients: Vec<Vec<Vec<f64>>> = (0..6)
        .map(|step| (0..ranks).map(|rank| gradient(rank, step, "a", len)).collect())
        .collect();
    let run = run(Compression::TopK { ratio }, ranks, &buckets, 6);
    let (exact, single) = (run.outcome_of::<f64>(gradient), run.outcome_of::<f32>(gradient));
    for (step, expected) in simulated(ranks, count, len, &gradients).iter().enumerate() {
        assert_near(&exact.steps[step][0], expected, 1e-9);
        assert_near(&single.steps[step][0], expected, 1e-4);
    }
}

#[test]
fn the_largest_are_sent_and_the_rest_is_kept() {
    for ranks in [1, 2, 3] {
        check(ranks, 0.05, 10, 200, &gradient);
        check(ranks, 0.01, 2, 299, &gradient);
        check(ranks, 1e-6, 1, 50, &gradient);
        check(ranks, 1.0, 33, 33, &gradient);
    }
}

#[test]
fn of_equal_magnitudes_the_lower_index_is_sent() {
    let few_sizes = |rank: usize, step: u64, _: &str, len: usize| -> Vec<f64> {
        let value = |k: usize| ((k + rank + step as usize) % 3) as f64 * (-1f64).powi(k as i32);
        (0..len).map(value).collect()
    };
    for ranks in [1, 2, 3] {
        check(ranks, 0.1, 10, 100, &few_sizes);
        check(ranks, 0.9, 90, 100, &few_sizes);
    }
}
