//! Our PowerSGD hook gives what PyTorch's gives; `golden/power_sgd.py` says how that was run.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{HostBuffer, local};
use bonfire_parallel::Segment;
use bonfire_parallel::hooks::{Compression, HookBucket};
use bonfire_tensor::state::{HostTensor, Scalar, State};
use bonfire_tests::assert_close;
use safetensors::SafeTensors;

static GOLDEN: &[u8] = include_bytes!("../golden/power_sgd.safetensors");
const RANKS: usize = 2;
const PARAMETERS: [(&str, &[usize]); 3] =
    [("head.weight", &[9, 8]), ("head.bias", &[8]), ("conv.weight", &[6, 2, 3, 3])];

#[test]
fn reduced_gradients_are_those_of_pytorch() {
    let segments = segments();
    let len = segments[2].range.end;
    let gradients = golden("gradients");
    let steps = gradients.len() / RANKS / len;
    for columns in [1, 2, 3] {
        let reduced = local::spawn(RANKS, |group| {
            let compression = Compression::PowerSgd {
                matrix_approximation_rank: columns,
                min_compression_rate: 1.1,
                start_iter: 2,
                use_error_feedback: true,
                warm_start: true,
                seed: 0,
            };
            let mut hook = compression.build().unwrap().unwrap();
            let states = vec![factors(columns); RANKS];
            hook.load_state(&states, group.rank(), RANKS).unwrap();
            let mut outputs = Vec::new();
            for gradient in gradients.chunks(len).skip(group.rank() * steps).take(steps) {
                let mut gradient = HostBuffer::from(gradient.to_vec());
                let bucket = HookBucket { index: 0, segments: &segments };
                hook.reduce(&bucket, &mut gradient, &group).unwrap();
                outputs.extend(gradient.into_vec::<f64>().unwrap());
            }
            outputs
        });
        let expected = golden(&format!("{columns}/reduced"));
        for (rank, reduced) in reduced.iter().enumerate() {
            assert_close(&format!("{columns} columns, rank {rank}"), reduced, &expected, 1e-9);
        }
    }
}

fn segments() -> Vec<Segment> {
    let mut end = 0;
    let segment = |(parameter, (path, shape)): (usize, &(&str, &[usize]))| {
        let start = end;
        end += shape.iter().product::<usize>();
        Segment { path: (*path).into(), shape: shape.to_vec(), range: start..end, parameter }
    };
    PARAMETERS.iter().enumerate().map(segment).collect()
}

/// A state after two steps that left the golden factors.
fn factors(columns: usize) -> State {
    let mut state = State::default();
    state.scalars.insert("steps".into(), Scalar::Uint(2));
    for (path, shape) in PARAMETERS.iter().filter(|(_, shape)| shape.len() > 1) {
        let shape = vec![columns, shape[1..].iter().product()];
        let data = HostBuffer::from(golden(&format!("{columns}/q/{path}")));
        state.tensors.insert(format!("q/{path}"), HostTensor { shape, data });
    }
    state
}

fn golden(name: &str) -> Vec<f64> {
    let golden = SafeTensors::deserialize(GOLDEN).unwrap();
    let words = golden.tensor(name).unwrap().data().chunks_exact(8);
    words.map(|word| f64::from_le_bytes(word.try_into().unwrap())).collect()
}
