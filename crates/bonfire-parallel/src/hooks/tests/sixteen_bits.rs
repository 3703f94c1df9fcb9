//! `fp16_compress` and `bf16_compress`.

use super::*;
use half::{bf16, f16};

fn check(compression: Compression, round: fn(f64) -> f64, epsilon: f64) {
    let buckets = one_bucket();
    for ranks in [1, 2, 3] {
        let run = run(compression, ranks, &buckets, 2);
        for (step, got) in run.outcome::<f64>().steps.iter().enumerate() {
            for segment in &buckets[0] {
                let len = segment.range.len();
                let mut sums = vec![0.0; len];
                for rank in 0..ranks {
                    let gradient = gradient(rank, step as u64, &segment.path, len);
                    let rounded = gradient.into_iter().map(|value| round(value / ranks as f64));
                    sums.iter_mut().zip(rounded).for_each(|(sum, value)| *sum += value);
                }
                let got = &got[0][segment.range.clone()];
                for (got, sum) in got.iter().zip(sums) {
                    if ranks <= 2 {
                        assert_eq!(*got, round(sum));
                    } else {
                        // The engine decides how often a sum of three is rounded.
                        assert!((got - sum).abs() <= 3.0 * epsilon * 4.0, "{got} {sum}");
                    }
                }
            }
        }
    }
}

#[test]
fn casts_are_summed_over_ranks() {
    check(Compression::Fp16, |value| f16::from_f64(value).to_f64(), 2f64.powi(-11));
    check(Compression::Bf16, |value| bf16::from_f64(value).to_f64(), 2f64.powi(-8));
}

#[test]
fn division_comes_before_the_cast() {
    let buckets = [bucket(&[("a", &[3])])];
    let large = |_: usize, _: u64, _: &str, _: usize| vec![60000.0, -60000.0, 65504.0 * 2.0];
    let outcome = run(Compression::Fp16, 3, &buckets, 1).outcome_of::<f32>(&large);
    let step = &outcome.steps[0][0];
    assert!((step[0] - 60000.0).abs() < 64.0 && (step[1] + 60000.0).abs() < 64.0, "{step:?}");
    assert_eq!(step[2], f64::INFINITY, "a mean beyond the range of f16 is seen");
}

#[test]
fn f32_is_rounded_to_the_nearest() {
    // Values, ties and what is special, of either 16-bit type.
    let values: Vec<f64> = (0..=u16::MAX)
        .step_by(3)
        .flat_map(|bits| {
            let value = bf16::from_bits(bits).to_f32();
            let between = f32::from_bits(value.to_bits() | 0x8000);
            let half = f16::from_bits(bits).to_f32();
            [value, between, half].map(f64::from)
        })
        .collect();
    let buckets = [bucket(&[("a", &[values.len()])])];
    let given = |_: usize, _: u64, _: &str, _: usize| values.clone();
    let check = |compression, round: fn(f32) -> f32| {
        let outcome = run(compression, 1, &buckets, 1).outcome_of::<f32>(&given);
        for (got, value) in outcome.steps[0][0].iter().zip(&values) {
            let expected = f64::from(round(*value as f32));
            assert!(*got == expected || got.is_nan() && expected.is_nan(), "{value}: {got}");
        }
    };
    check(Compression::Fp16, |value| f16::from_f32(value).to_f32());
    check(Compression::Bf16, |value| bf16::from_f32(value).to_f32());
}
