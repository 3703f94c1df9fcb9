//! Weights from elsewhere: files of PyTorch or of another run, into a model and out of it.
//!
//! A file may have the model's own module paths, as `model.safetensors` of a run has, or the keys of
//! PyTorch's `state_dict`, if the model says how they translate ([`WeightNames`]). Which of them it
//! has is told by the names that fit; so is a `state_dict` inside a checkpoint (`state_dict`,
//! `model_state_dict` or `model`) or inside `DistributedDataParallel` (`module`).

mod error;
mod file;
mod fit;

pub use error::{Mismatch, WeightsError, WrongShape};
pub use fit::{Fitted, Head, load_weights};

use crate::checkpoint::write_safetensors;
use bonfire_comm::HostBuffer;
use bonfire_nn::PyTorchTensor;
use bonfire_tensor::parameters;
use bonfire_tensor::state::HostTensor;
use burn::module::Module;
use std::collections::BTreeMap;
use std::path::Path;

/// How the tensors of a model are called elsewhere.
#[derive(Debug, Clone, Default)]
pub struct WeightNames {
    /// Path of the module that gives the scores of the classes, whose weights are of no use to other
    /// classes.
    pub head: Option<String>,
    /// From a module path to PyTorch's name.
    pub pytorch: Option<fn(&str) -> PyTorchTensor>,
}

impl WeightNames {
    /// Names the module that gives the scores of the classes.
    pub fn with_head(self, path: impl Into<String>) -> Self {
        Self { head: Some(path.into()), ..self }
    }

    /// Says how module paths translate into PyTorch's names.
    pub fn with_pytorch(self, translate: fn(&str) -> PyTorchTensor) -> Self {
        Self { pytorch: Some(translate), ..self }
    }
}

/// Writes a model's tensors under PyTorch's names, as safetensors.
///
/// `load_state_dict` takes them as they are: the counter `num_batches_tracked` of a batch
/// normalisation, which Burn has not, begins at 0 there.
///
/// # Errors
/// [`WeightsError::NoPyTorchNames`] for a model that has none, and whatever writing runs into.
pub fn export_pytorch<M: Module>(
    model: &M,
    names: &WeightNames,
    path: &Path,
) -> Result<(), WeightsError> {
    let Some(translate) = names.pytorch else { return Err(WeightsError::NoPyTorchNames) };
    let mut tensors = BTreeMap::new();
    for (own, tensor) in parameters::read(model, |_| true)?.tensors {
        let foreign = translate(&own);
        let tensor = if foreign.transposed { transpose(tensor) } else { tensor };
        tensors.insert(foreign.name, tensor);
    }
    Ok(write_safetensors(path, &tensors)?)
}

/// Exchanges rows and columns; tensors of other than two dimensions stay as they are.
fn transpose(tensor: HostTensor) -> HostTensor {
    fn exchange<T: Copy>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
        (0..columns)
            .flat_map(|column| (0..rows).map(move |row| values[row * columns + column]))
            .collect()
    }
    let [rows, columns] = tensor.shape[..] else { return tensor };
    let data = match tensor.data {
        HostBuffer::F32(values) => exchange(&values, rows, columns).into(),
        HostBuffer::F64(values) => exchange(&values, rows, columns).into(),
        HostBuffer::F16(values) => exchange(&values, rows, columns).into(),
        HostBuffer::BF16(values) => exchange(&values, rows, columns).into(),
        HostBuffer::I32(values) => exchange(&values, rows, columns).into(),
        HostBuffer::I64(values) => exchange(&values, rows, columns).into(),
        HostBuffer::U8(values) => exchange(&values, rows, columns).into(),
    };
    HostTensor { shape: vec![columns, rows], data }
}
