//! `int8` and `fp8` against a simulation of all ranks in one loop.

use super::*;

/// What one rounding of a whole vector gives.
fn rounded(values: &[f64], block: usize, round: &dyn Fn(f64) -> f64, max: f32) -> Vec<f64> {
    let mut rounded = Vec::new();
    for block in values.chunks(block) {
        let largest = block.iter().fold(0f64, |largest, value| largest.max(value.abs()));
        let scale = f64::from(largest as f32 / max);
        rounded.extend(block.iter().map(|value| scale * round(value / scale)));
    }
    rounded
}

fn simulated(
    ranks: usize,
    steps: u64,
    segments: &[Segment],
    compress: &dyn Fn(&[f64]) -> Vec<f64>,
) -> Vec<Vec<f64>> {
    let len = segments.last().unwrap().range.end;
    let mut residuals = vec![vec![0.0; len]; ranks];
    let mut server = vec![0.0; len];
    let mut outputs = Vec::new();
    for step in 0..steps {
        let mut sum = vec![0.0; len];
        for (rank, residual) in residuals.iter_mut().enumerate() {
            let parameter = |s: &Segment| gradient(rank, step, &s.path, s.range.len());
            let gradient: Vec<f64> = segments.iter().flat_map(parameter).collect();
            let wanted: Vec<f64> = gradient.iter().zip(&*residual).map(|(a, b)| a + b).collect();
            let sent = compress(&wanted);
            for k in 0..len {
                sum[k] += sent[k];
                residual[k] = wanted[k] - sent[k];
            }
        }
        // Chunks are whole blocks, so it does not matter where they are cut.
        let owed = sum.iter().zip(&server);
        let mean: Vec<f64> = owed.map(|(sum, owed)| sum / ranks as f64 + owed).collect();
        let output = compress(&mean);
        server = mean.iter().zip(&output).map(|(a, b)| a - b).collect();
        outputs.push(output);
    }
    outputs
}

fn check(compression: Compression, compress: &dyn Fn(&[f64]) -> Vec<f64>) {
    let buckets = one_bucket();
    for ranks in [1, 2, 3] {
        let run = run(compression, ranks, &buckets, 5);
        let (exact, single) = (run.outcome::<f64>(), run.outcome::<f32>());
        for (step, expected) in simulated(ranks, 5, &buckets[0], compress).iter().enumerate() {
            assert_near(&exact.steps[step][0], expected, 1e-9);
            // A code that falls on another side in f32 is one step of the block's scale away.
            if step == 0 {
                let largest = expected.iter().fold(0f64, |a, b| a.max(b.abs()));
                assert_near(&single.steps[step][0], expected, largest / 14.0);
            }
        }
    }
}

#[test]
fn int8_is_rounded_once_on_its_way_and_once_on_its_way_back() {
    for block in [1, 16, 64, 1000] {
        check(Compression::Int8 { block }, &|values| {
            rounded(values, block, &f64::round_ties_even, 127.0)
        });
    }
}

#[test]
fn fp8_is_rounded_once_on_its_way_and_once_on_its_way_back() {
    // Three bits behind the leading one, and none below 2^-9.
    let round = |value: f64| {
        let exponent = value.abs().log2().floor().max(-6.0);
        let unit = (exponent - 3.0).exp2();
        (value / unit).round_ties_even() * unit
    };
    for block in [1, 16, 64, 1000] {
        check(Compression::Fp8 { block }, &|values| rounded(values, block, &round, 448.0));
    }
}
