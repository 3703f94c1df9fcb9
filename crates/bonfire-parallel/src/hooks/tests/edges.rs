//! Lengths and types at the edge.

use super::*;
use half::{bf16, f16};

fn all() -> Vec<Compression> {
    [with_error_feedback(), vec![Compression::Fp16, Compression::Bf16]].concat()
}

#[test]
fn any_length_is_reduced() {
    for compression in all() {
        for ranks in [1, 2, 3] {
            for len in [0usize, 1, 2, 3, 15, 16, 17, 47, 48, 49, 64, 65, 100, 129] {
                let buckets = [bucket(&[("a", &[len])]), bucket(&[])];
                let outcome = run(compression, ranks, &buckets, 2).outcome::<f32>();
                for step in outcome.steps {
                    assert_eq!((step[0].len(), step[1].len()), (len, 0));
                    assert!(step[0].iter().all(|value| value.is_finite()));
                }
            }
        }
    }
}

#[test]
fn equal_gradients_of_one_element_come_out_as_they_are() {
    let buckets = [bucket(&[("a", &[1])])];
    for compression in all() {
        let outcome = run(compression, 3, &buckets, 2).outcome_of::<f64>(&|_, _, _, _| vec![1.5]);
        for step in outcome.steps {
            assert!((step[0][0] - 1.5).abs() < 2e-3, "{compression:?}: {}", step[0][0]);
        }
    }
}

#[test]
fn gradients_of_16_bits_get_the_plain_mean() {
    let segments = bucket(&[("a", &[40, 30])]);
    for compression in all() {
        local::spawn(2, |group| {
            let mut hook = run(compression, 2, &[], 0).hook(&group);
            let mut check = |mut gradients: HostBuffer, expected: HostBuffer| {
                let bucket = HookBucket { index: 0, segments: &segments };
                hook.reduce(&bucket, &mut gradients, &group).unwrap();
                assert_eq!(gradients, expected);
            };
            // Exact in both types, and nothing that any compression would keep.
            let own = |k: usize| (k % 37) as f32 + 2.0 * group.rank() as f32;
            let mean = |k: usize| (k % 37) as f32 + 1.0;
            let f16s = |f: &dyn Fn(usize) -> f32| {
                (0..1200).map(|k| f16::from_f32(f(k))).collect::<Vec<_>>().into()
            };
            let bf16s = |f: &dyn Fn(usize) -> f32| {
                (0..1200).map(|k| bf16::from_f32(f(k))).collect::<Vec<_>>().into()
            };
            check(f16s(&own), f16s(&mean));
            check(bf16s(&own), bf16s(&mean));
        });
    }
}

#[test]
fn a_buffer_that_is_too_short_or_of_another_type_is_an_error() {
    let group = ProcessGroup::single();
    let segments = bucket(&[("a", &[3])]);
    let bucket = HookBucket { index: 4, segments: &segments };
    for compression in all() {
        let mut hook = compression.build().unwrap().unwrap();
        let mut reduce = |mut gradients: HostBuffer| {
            hook.reduce(&bucket, &mut gradients, &group).unwrap_err().to_string()
        };
        let error = reduce(vec![0.0f32; 2].into());
        assert!(error.contains("bucket 4") && error.contains("3 elements"), "{error}");
        let error = reduce(vec![0i32; 3].into());
        assert!(error.contains("i32") && error.contains("bucket 4"), "{error}");
    }
}
