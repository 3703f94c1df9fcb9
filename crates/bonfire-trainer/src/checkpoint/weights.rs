//! The weights in checkpoints.

use super::{Checkpoint, CheckpointError, MODEL_PREFIX, load};
use crate::WeightAverage;
use crate::callback::Callback;
use bonfire_comm::HostBuffer;
use bonfire_tensor::TensorError;
use bonfire_tensor::host::{burn_type, flat_from_host, to_host};
use bonfire_tensor::state::{HostTensor, State, Stateful};
use burn::tensor::{DType, Device, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What the entries of a callback are named by.
const CALLBACK: &str = "callback.";
/// What an average of weights has beside other callbacks with state.
const AVERAGE: &str = ".parameters.";

impl Checkpoint {
    /// Parameters and buffers of the model by module path.
    pub fn into_model(mut self) -> BTreeMap<String, HostTensor> {
        self.state.take_under(MODEL_PREFIX).tensors
    }

    /// Names of the averages of weights that it holds, such as `ema`.
    pub fn averages(&self) -> BTreeSet<String> {
        let names = self.state.tensors.keys().filter_map(|name| {
            let (callback, _) = name.strip_prefix(CALLBACK)?.split_once(AVERAGE)?;
            Some(callback.to_string())
        });
        names.collect()
    }

    /// Parameters and buffers of an average by module path, with the model's own values where it has
    /// none; `None` if there is no average of that name.
    ///
    /// # Errors
    /// When the average cannot be read.
    pub fn into_average(
        mut self,
        name: &str,
    ) -> Result<Option<BTreeMap<String, HostTensor>>, crate::TrainError> {
        if !self.averages().contains(name) {
            return Ok(None);
        }
        // Which average it is makes no difference to its values.
        let mut average = WeightAverage::swa(0)?;
        average.load_state(self.state.take_under(&format!("{CALLBACK}{name}")))?;
        let mut tensors = self.into_model();
        tensors.extend(average.variant()?.into_iter().flat_map(|variant| variant.values.tensors));
        Ok(Some(tensors))
    }
}

/// Refuses a model with values that are not numbers: a checkpoint of it would push out those that are of
/// use. Infinite values may be meant, in a mask for example.
pub(super) fn expect_numbers(model: &State, step: u64) -> Result<(), CheckpointError> {
    let is_nan = |data: &HostBuffer| match data {
        HostBuffer::F32(values) => values.iter().any(|value| value.is_nan()),
        HostBuffer::F64(values) => values.iter().any(|value| value.is_nan()),
        HostBuffer::F16(values) => values.iter().any(|value| value.is_nan()),
        HostBuffer::BF16(values) => values.iter().any(|value| value.is_nan()),
        _ => false,
    };
    match model.tensors.iter().find(|(_, tensor)| is_nan(&tensor.data)) {
        Some((tensor, _)) => Err(CheckpointError::NotANumber { tensor: tensor.clone(), step }),
        None => Ok(()),
    }
}

/// The mean of the models of several checkpoints, in f64 on the way: parameters and floating buffers;
/// what is counted in whole numbers is that of the last one.
///
/// # Errors
/// [`CheckpointError`] of a checkpoint that cannot be read, or whose model is another than the
/// first's.
///
/// # Reference
/// Vaswani et al. 2017, section 6.1, average the last checkpoints of a training.
pub fn mean_of_models(
    paths: &[PathBuf],
) -> Result<BTreeMap<String, HostTensor>, crate::TrainError> {
    let mut sums: BTreeMap<String, (Tensor<1>, HostTensor)> = BTreeMap::new();
    for (count, path) in paths.iter().enumerate() {
        let model = load(path)?.into_model();
        if count > 0 && !model.keys().eq(sums.keys()) {
            return Err(another_model(path, "it has other tensors").into());
        }
        for (name, tensor) in model {
            let flat = flat_from_host(tensor.data.clone(), &Device::flex()).cast(DType::F64);
            let sum = match sums.remove(&name) {
                None => flat,
                Some((sum, first)) => {
                    let alike =
                        first.shape == tensor.shape && first.data.dtype() == tensor.data.dtype();
                    if !alike {
                        let reason = format!("its {name} has another shape or type");
                        return Err(another_model(path, &reason).into());
                    }
                    sum + flat
                }
            };
            sums.insert(name, (sum, tensor));
        }
    }
    let mean = |(sum, last): (Tensor<1>, HostTensor)| -> Result<HostTensor, TensorError> {
        let dtype = burn_type(last.data.dtype());
        if !dtype.is_float() {
            return Ok(last);
        }
        let data = to_host((sum / paths.len() as f64).cast(dtype))?;
        Ok(HostTensor { shape: last.shape, data })
    };
    sums.into_iter().map(|(name, sum)| Ok((name, mean(sum)?))).collect()
}

fn another_model(path: &Path, reason: &str) -> CheckpointError {
    let reason = format!("{reason} than the checkpoints before it");
    CheckpointError::Invalid { path: path.to_path_buf(), kind: "part of a mean", reason }
}
