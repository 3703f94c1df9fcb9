//! Tensors as safetensors files.

use super::CheckpointError;
use crate::whole_file::write_whole;
use bonfire_comm::{DType, HostBuffer};
use bonfire_tensor::state::HostTensor;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn encode(tensors: &BTreeMap<String, HostTensor>) -> Result<Vec<u8>, CheckpointError> {
    let failed = |reason: String| CheckpointError::Encode { what: "tensors", reason };
    let mut views = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let dtype = match tensor.data.dtype() {
            DType::F32 => Dtype::F32,
            DType::F64 => Dtype::F64,
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            DType::I32 => Dtype::I32,
            DType::I64 => Dtype::I64,
            DType::U8 => Dtype::U8,
        };
        let view = TensorView::new(dtype, tensor.shape.clone(), tensor.data.as_bytes())
            .map_err(|error| failed(format!("\"{name}\": {error}")))?;
        views.push((name.as_str(), view));
    }
    safetensors::serialize(views, None).map_err(|error| failed(error.to_string()))
}

pub(super) fn decode(
    bytes: &[u8],
    path: &Path,
) -> Result<BTreeMap<String, HostTensor>, CheckpointError> {
    let invalid = |reason: String| CheckpointError::Invalid {
        path: path.to_path_buf(),
        kind: "safetensors file",
        reason,
    };
    let file = SafeTensors::deserialize(bytes).map_err(|error| invalid(error.to_string()))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I32 => DType::I32,
            Dtype::I64 => DType::I64,
            Dtype::U8 => DType::U8,
            other => return Err(invalid(format!("\"{name}\" has element type {other:?}"))),
        };
        let mut data = HostBuffer::zeros(dtype, view.shape().iter().product());
        if data.as_bytes().len() != view.data().len() {
            return Err(invalid(format!("\"{name}\" has {} bytes", view.data().len())));
        }
        data.as_bytes_mut().copy_from_slice(view.data());
        tensors.insert(name.to_string(), HostTensor { shape: view.shape().to_vec(), data });
    }
    Ok(tensors)
}

/// Writes tensors by name into a safetensors file.
///
/// # Errors
/// [`CheckpointError`] naming the file.
pub fn write_safetensors(
    path: &Path,
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<(), CheckpointError> {
    write_whole(path, &encode(tensors)?).map_err(CheckpointError::io("writing", path))
}

/// Reads the tensors of a safetensors file.
///
/// # Errors
/// [`CheckpointError`] naming the file.
pub fn read_safetensors(path: &Path) -> Result<BTreeMap<String, HostTensor>, CheckpointError> {
    let bytes = std::fs::read(path).map_err(CheckpointError::io("reading", path))?;
    decode(&bytes, path)
}
