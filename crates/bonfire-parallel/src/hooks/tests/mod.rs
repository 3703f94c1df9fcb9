//! Hooks between ranks that are threads, over several steps.

mod conservation;
mod edges;
mod non_finite;
mod power_sgd;
mod quantized;
mod settings;
mod sixteen_bits;
mod state;
mod top_k;
mod wire;

use super::float::HookFloat;
use super::{CommHook, Compression, HookBucket};
use crate::bucket::Segment;
use bonfire_comm::{HostBuffer, ProcessGroup, local};
use bonfire_tensor::state::State;
use std::ops::Range;

/// What a step gives every rank, by bucket, as f64.
type Step = Vec<Vec<f64>>;

/// What came out of a run: equal steps on all ranks, and the state of each.
struct Outcome {
    steps: Vec<Step>,
    states: Vec<State>,
}

/// Parameters one behind the other.
fn bucket(parameters: &[(&str, &[usize])]) -> Vec<Segment> {
    let mut end = 0;
    let segment = |(parameter, (path, shape)): (usize, &(&str, &[usize]))| {
        let start = end;
        end += shape.iter().product::<usize>();
        Segment { path: (*path).into(), shape: shape.to_vec(), range: start..end, parameter }
    };
    parameters.iter().enumerate().map(segment).collect()
}

fn one_bucket() -> Vec<Vec<Segment>> {
    vec![bucket(&[("last.weight", &[11, 9]), ("last.bias", &[9]), ("conv.weight", &[6, 2, 3, 3])])]
}

/// A gradient of a parameter: unlike on any other rank, step, path and element, and of varied size.
fn gradient(rank: usize, step: u64, path: &str, len: usize) -> Vec<f64> {
    let mut word = 1 + rank as u64 * 1_000_003 + step * 7919;
    word = path.bytes().fold(word, |word, byte| word.wrapping_mul(31) + u64::from(byte));
    let mut noise = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    (0..len).map(|_| noise() * (6.0 * noise()).exp()).collect()
}

/// Ranks, steps and what they begin with.
struct Run<'a> {
    compression: Compression,
    ranks: usize,
    buckets: &'a [Vec<Segment>],
    steps: Range<u64>,
    /// States of the ranks that saved.
    from: &'a [State],
}

impl Run<'_> {
    /// Reduces [`gradient`]s in `E`, and checks that all ranks get the same bits.
    fn outcome<E: HookFloat>(&self) -> Outcome {
        self.outcome_of::<E>(&gradient)
    }

    fn outcome_of<E: HookFloat>(
        &self,
        gradient: &(dyn Fn(usize, u64, &str, usize) -> Vec<f64> + Sync),
    ) -> Outcome {
        let outcomes = local::spawn(self.ranks, |group| {
            let mut hook = self.hook(&group);
            let steps = self.steps.clone().map(|step| {
                let values = |segments: &Vec<Segment>| {
                    let parameter =
                        |s: &Segment| gradient(group.rank(), step, &s.path, s.range.len());
                    segments.iter().flat_map(parameter).map(E::from_f64).collect::<Vec<E>>()
                };
                let reduced = self.buckets.iter().enumerate().map(|(index, segments)| {
                    reduce(hook.as_mut(), index, segments, values(segments), &group)
                });
                reduced.collect::<Vec<_>>()
            });
            (steps.collect::<Vec<_>>(), hook.state().unwrap())
        });
        let bits = |steps: &Vec<Step>| -> Vec<u64> {
            steps.iter().flatten().flatten().map(|value| value.to_bits()).collect()
        };
        let (steps, states): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
        assert!(steps.windows(2).all(|ranks| bits(&ranks[0]) == bits(&ranks[1])));
        Outcome { steps: steps.into_iter().next().unwrap(), states }
    }

    fn hook(&self, group: &ProcessGroup) -> Box<dyn CommHook> {
        let mut hook = self.compression.build().unwrap().unwrap();
        hook.load_state(self.from, group.rank(), self.ranks).unwrap();
        hook
    }
}

/// A run of one bucket from the beginning.
fn run(compression: Compression, ranks: usize, buckets: &[Vec<Segment>], steps: u64) -> Run<'_> {
    Run { compression, ranks, buckets, steps: 0..steps, from: &[] }
}

/// Reduces one bucket in a buffer with something behind it, which must stay.
fn reduce<E: HookFloat>(
    hook: &mut dyn CommHook,
    index: usize,
    segments: &[Segment],
    mut values: Vec<E>,
    group: &ProcessGroup,
) -> Vec<f64> {
    let padding = [3.5, -7.0];
    values.extend(padding.map(E::from_f64));
    let mut gradients = HostBuffer::from(values);
    hook.reduce(&HookBucket { index, segments }, &mut gradients, group).unwrap();
    let mut values = wide(&gradients);
    assert_eq!(values.split_off(values.len() - 2), padding);
    values
}

/// Every compression with error feedback, with settings that suit small buckets.
fn with_error_feedback() -> Vec<Compression> {
    vec![
        Compression::Int8 { block: 16 },
        Compression::Fp8 { block: 64 },
        Compression::TopK { ratio: 0.05 },
        power_sgd(2, true),
        power_sgd(1, false),
    ]
}

fn power_sgd(matrix_approximation_rank: usize, warm_start: bool) -> Compression {
    Compression::PowerSgd {
        matrix_approximation_rank,
        min_compression_rate: 1.1,
        start_iter: 2,
        use_error_feedback: true,
        warm_start,
        seed: 5,
    }
}

/// What the ranks owe together, by path: the mean of the residuals plus the server residuals.
fn owed(states: &[State], segment: &Segment) -> Vec<f64> {
    let mut owed = vec![0.0; segment.range.len()];
    for state in states {
        for (kind, weight) in [("residual", 1.0 / states.len() as f64), ("server_residual", 1.0)] {
            let Some(tensor) = state.tensors.get(&format!("{kind}/{}", segment.path)) else {
                continue;
            };
            assert_eq!(tensor.shape, segment.shape);
            for (owed, value) in owed.iter_mut().zip(wide(&tensor.data)) {
                *owed += weight * value;
            }
        }
    }
    owed
}

fn wide(buffer: &HostBuffer) -> Vec<f64> {
    match buffer {
        HostBuffer::F32(values) => values.iter().copied().map(f64::from).collect(),
        HostBuffer::F64(values) => values.clone(),
        other => panic!("{:?}", other.dtype()),
    }
}

fn assert_near(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance, "element {at}: {got}, expected {expected}");
    }
}
