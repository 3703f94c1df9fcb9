//! Error feedback loses nothing.

use super::*;

/// Sum over the steps of what came out, plus what is owed, less the sum of the exact means; the largest
/// of all elements.
fn lost(
    ranks: usize,
    steps: u64,
    outcomes: &[(&[Vec<Segment>], &[Step])],
    states: &[State],
) -> f64 {
    let mut lost = 0f64;
    for segment in outcomes[0].0.iter().flatten() {
        let mut sum = owed(states, segment);
        for step in 0..steps {
            for rank in 0..ranks {
                let gradient = gradient(rank, step, &segment.path, segment.range.len());
                sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum -= value / ranks as f64);
            }
        }
        for (buckets, steps) in outcomes {
            let place = |(index, bucket): (usize, &Vec<Segment>)| {
                let same = bucket.iter().find(|other| other.path == segment.path)?;
                Some((index, same.range.clone()))
            };
            let (index, range) = buckets.iter().enumerate().find_map(place).unwrap();
            for step in *steps {
                let got = &step[index][range.clone()];
                sum.iter_mut().zip(got).for_each(|(sum, value)| *sum += value);
            }
        }
        lost = sum.iter().fold(lost, |lost, value| lost.max(value.abs()));
    }
    lost
}

#[test]
fn outputs_and_what_is_owed_make_up_the_exact_means() {
    for compression in with_error_feedback() {
        for ranks in [1, 2, 3] {
            let buckets = one_bucket();
            let run = run(compression, ranks, &buckets, 6);
            let (exact, single) = (run.outcome::<f64>(), run.outcome::<f32>());
            let lost =
                |outcome: &Outcome| lost(ranks, 6, &[(&buckets, &outcome.steps)], &outcome.states);
            assert!(lost(&exact) < 1e-12, "{compression:?} {ranks}: {}", lost(&exact));
            assert!(lost(&single) < 2e-5, "{compression:?} {ranks}: {}", lost(&single));
        }
    }
}

#[test]
fn nothing_is_lost_when_buckets_are_laid_out_anew() {
    let before = [
        bucket(&[("a", &[13, 8]), ("b", &[5]), ("c", &[7, 12])]),
        bucket(&[("d", &[40]), ("e", &[9, 9])]),
    ];
    let after = [
        bucket(&[("e", &[9, 9]), ("a", &[13, 8])]),
        bucket(&[("c", &[7, 12])]),
        bucket(&[("b", &[5]), ("d", &[40])]),
    ];
    // A bucket that stays and one that is cut.
    let third =
        [after[0].clone(), bucket(&[("c", &[7, 12]), ("b", &[5])]), bucket(&[("d", &[40])])];
    for compression in with_error_feedback() {
        for ranks in [2, 3] {
            let layouts = [&before[..], &after[..], &third[..], &before[..]];
            let outcomes = local::spawn(ranks, |group| {
                let mut hook = run(compression, ranks, &[], 0).hook(&group);
                let steps = layouts.iter().zip(0u64..).map(|(buckets, step)| {
                    let reduced = buckets.iter().enumerate().map(|(index, segments)| {
                        let gradient =
                            |s: &Segment| gradient(group.rank(), step, &s.path, s.range.len());
                        let values = segments.iter().flat_map(gradient).collect::<Vec<f64>>();
                        reduce(hook.as_mut(), index, segments, values, &group)
                    });
                    reduced.collect::<Step>()
                });
                (steps.collect::<Vec<_>>(), hook.state().unwrap())
            });
            let (steps, states): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
            let by_layout: Vec<_> = layouts.iter().copied().zip(steps[0].chunks(1)).collect();
            let lost = lost(ranks, 4, &by_layout, &states);
            assert!(lost < 1e-12, "{compression:?} {ranks}: {lost}");
        }
    }
}

#[test]
fn without_error_feedback_nothing_is_kept() {
    let mut compression = power_sgd(1, true);
    if let Compression::PowerSgd { use_error_feedback, .. } = &mut compression {
        *use_error_feedback = false;
    }
    let outcome = run(compression, 2, &one_bucket(), 3).outcome::<f64>();
    assert!(outcome.states[0].tensors.keys().all(|name| !name.contains("residual")));
}
