//! Reference runs of PyTorch; `golden/generate.py` says what they are.

use crate::Precision;
use crate::samples::{FEATURES, Samples};
use bonfire_comm::HostBuffer;
use bonfire_tensor::state::{HostTensor, State};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

static INPUTS: &[u8] = include_bytes!("../golden/inputs.safetensors");
static EXPECTED: &[u8] = include_bytes!("../golden/expected.safetensors");

/// Samples in a batch.
pub const BATCH: usize = 16;
/// Paths of the model's parameters.
pub const PARAMETERS: [&str; 4] =
    ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"];

/// The parameters before the first step.
pub fn initial_state(precision: Precision) -> State {
    let inputs = SafeTensors::deserialize(INPUTS).unwrap();
    let mut state = State::default();
    for path in PARAMETERS {
        let view = inputs.tensor(path).unwrap();
        let data = match precision {
            Precision::F64 => HostBuffer::from(floats(&view)),
            Precision::F32 => {
                let values = floats(&view).into_iter().map(|value| value as f32);
                HostBuffer::from(values.collect::<Vec<f32>>())
            }
        };
        state.tensors.insert(path.to_string(), HostTensor { shape: view.shape().to_vec(), data });
    }
    state
}

/// The batches in their order.
pub fn batches() -> Vec<Samples> {
    let inputs = SafeTensors::deserialize(INPUTS).unwrap();
    let features = floats(&inputs.tensor("features").unwrap());
    let labels = inputs.tensor("labels").unwrap();
    let labels: Vec<i64> = words(&labels).map(i64::from_le_bytes).collect();
    features
        .chunks_exact(BATCH * FEATURES)
        .zip(labels.chunks_exact(BATCH))
        .map(|(features, labels)| Samples::new(features.to_vec(), labels.to_vec()))
        .collect()
}

/// An output of the run with this rule and precision: `losses`, or one of [`PARAMETERS`] after the
/// last step.
pub fn expected(rule: &str, precision: Precision, name: &str) -> Vec<f64> {
    let expected = SafeTensors::deserialize(EXPECTED).unwrap();
    floats(&expected.tensor(&format!("{rule}/{}/{name}", precision.name())).unwrap())
}

/// The numbers of a tensor of f32 or f64 in a golden file.
pub fn numbers_of(file: &[u8], name: &str) -> Vec<f64> {
    let file = SafeTensors::deserialize(file).unwrap();
    let view = file.tensor(name).unwrap();
    match view.dtype() {
        Dtype::F32 => {
            let words = view.data().chunks_exact(4);
            words.map(|word| f32::from_le_bytes(word.try_into().unwrap()).into()).collect()
        }
        _ => floats(&view),
    }
}

fn floats(view: &TensorView<'_>) -> Vec<f64> {
    words(view).map(f64::from_le_bytes).collect()
}

fn words<'a>(view: &TensorView<'a>) -> impl Iterator<Item = [u8; 8]> + use<'a> {
    view.data().chunks_exact(8).map(|word| word.try_into().unwrap())
}
