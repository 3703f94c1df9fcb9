//! States, out and in.

use super::*;
use bonfire_tensor::TensorError;

fn two_buckets() -> Vec<Vec<Segment>> {
    vec![
        bucket(&[("a", &[13, 8]), ("b", &[5])]),
        bucket(&[("c", &[7, 12]), ("d", &[61]), ("e", &[3, 3])]),
    ]
}

#[test]
fn a_restored_hook_goes_on_with_the_same_bits() {
    let buckets = two_buckets();
    for compression in with_error_feedback() {
        for ranks in [2, 3] {
            let base = run(compression, ranks, &buckets, 6);
            let whole = base.outcome::<f32>();
            let saved = run(compression, ranks, &buckets, 3).outcome::<f32>();
            let restored = Run { steps: 3..6, from: &saved.states, ..base }.outcome::<f32>();
            assert_eq!(restored.steps, whole.steps[3..]);
            assert_eq!(restored.states, whole.states);
            assert_ne!(saved.states, whole.states);
        }
    }
}

#[test]
fn a_state_that_is_saved_before_the_next_step_is_whole() {
    let buckets = two_buckets();
    for compression in with_error_feedback() {
        let saved = run(compression, 2, &buckets, 3).outcome::<f64>();
        let again = Run { steps: 3..3, from: &saved.states, ..run(compression, 2, &buckets, 0) };
        assert_eq!(again.outcome::<f64>().states, saved.states);
    }
}

#[test]
fn another_number_of_ranks_owes_the_same() {
    let buckets = two_buckets();
    for compression in with_error_feedback() {
        for (saved_by, loaded_by) in [(2, 3), (3, 2), (3, 1), (1, 2)] {
            let saved = run(compression, saved_by, &buckets, 3).outcome::<f64>();
            let base = run(compression, loaded_by, &buckets, 0);
            let loaded = Run { steps: 3..3, from: &saved.states, ..base }.outcome::<f64>();
            for segment in buckets.iter().flatten() {
                let (before, after) = (owed(&saved.states, segment), owed(&loaded.states, segment));
                assert_near(&after, &before, 1e-12);
            }
            let owes = |segment| owed(&saved.states, segment).iter().any(|value| *value != 0.0);
            assert!(owes(&buckets[0][0]), "{compression:?}");
            let run = Run {
                steps: 3..5,
                from: &saved.states,
                ..run(compression, loaded_by, &buckets, 0)
            };
            assert_eq!(run.outcome::<f64>().steps.len(), 2);
        }
    }
}

#[test]
fn power_sgd_goes_on_with_its_factors_in_other_buckets() {
    let (before, compression) = (two_buckets(), power_sgd(2, true));
    let after = [
        bucket(&[("c", &[7, 12])]),
        bucket(&[("e", &[3, 3]), ("d", &[61]), ("b", &[5]), ("a", &[13, 8])]),
    ];
    let base = run(compression, 2, &before, 5);
    let whole = base.outcome::<f64>();
    let saved = run(compression, 2, &before, 3).outcome::<f64>();
    let moved = Run { steps: 3..5, from: &saved.states, buckets: &after, ..base }.outcome::<f64>();
    for (step, moved) in whole.steps[3..].iter().zip(&moved.steps) {
        assert_eq!(step[1][..84], moved[0][..]);
        assert_eq!(step[0][..104], moved[1][75..]);
    }
}

#[test]
fn a_state_of_another_hook_or_model_is_refused() {
    fn load(compression: Compression, states: &[State]) -> Result<(), TensorError> {
        compression.build().unwrap().unwrap().load_state(states, 0, 2)
    }
    let buckets = two_buckets();
    let power = run(power_sgd(1, true), 2, &buckets, 1).outcome::<f64>().states;
    let error = load(Compression::int8(), &power).unwrap_err().to_string();
    assert!(error.contains("\"q/a\""), "{error}");
    let top_k = run(Compression::top_k(), 2, &buckets, 1).outcome::<f64>().states;
    let error = load(Compression::Fp16, &top_k).unwrap_err().to_string();
    assert!(error.contains("\"residual/a\""), "{error}");
    let error = load(power_sgd(1, true), &top_k).unwrap_err().to_string();
    assert!(error.contains("\"steps\""), "{error}");

    let mut three = vec![top_k[0].clone(); 3];
    three[2].tensors.remove("residual/c");
    let error = load(Compression::top_k(), &three).unwrap_err().to_string();
    assert!(error.contains("\"residual/c\""), "{error}");

    let mut hook = Compression::top_k().build().unwrap().unwrap();
    hook.load_state(&top_k[..1], 0, 1).unwrap();
    let segments = bucket(&[("a", &[13, 9])]);
    let mut gradients = HostBuffer::from(vec![0f64; 117]);
    let bucket = HookBucket { index: 0, segments: &segments };
    let error = hook.reduce(&bucket, &mut gradients, &ProcessGroup::single()).unwrap_err();
    assert!(error.to_string().contains("\"residual/a\""), "{error}");
}
