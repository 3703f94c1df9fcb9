//! Files of weights: names and shapes first, tensors when they are asked for.

use super::WeightsError;
use crate::checkpoint::read_safetensors;
use bonfire_comm::{DType, HostBuffer};
use bonfire_tensor::state::HostTensor;
use pytorch_reader::{DType as PyTorchType, PytorchReader};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// A file of weights.
pub(super) struct WeightsFile {
    path: PathBuf,
    content: Content,
}

enum Content {
    Safetensors(BTreeMap<String, HostTensor>),
    /// Its tensors are read one by one: a checkpoint may hold an optimizer of twice their size.
    PyTorch(PytorchReader),
}

impl WeightsFile {
    pub(super) fn open(path: &Path) -> Result<Self, WeightsError> {
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_lowercase());
        let content = match suffix.as_deref() {
            Some("safetensors") => Content::Safetensors(read_safetensors(path)?),
            Some("pt" | "pth") => Content::PyTorch(PytorchReader::new(path).map_err(failed(path))?),
            _ => return Err(WeightsError::UnknownFormat { path: path.to_path_buf() }),
        };
        Ok(Self { path: path.to_path_buf(), content })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn names(&self) -> BTreeSet<&str> {
        match &self.content {
            Content::Safetensors(tensors) => tensors.keys().map(String::as_str).collect(),
            Content::PyTorch(reader) => reader.tensors().keys().map(String::as_str).collect(),
        }
    }

    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        match &self.content {
            Content::Safetensors(tensors) => tensors.get(name).map(|tensor| &tensor.shape[..]),
            Content::PyTorch(reader) => reader.get(name).map(pytorch_reader::Tensor::shape),
        }
    }

    /// Takes a tensor out, in type `dtype`; `None` if there is none or its type is of another kind.
    pub(super) fn take(
        &mut self,
        name: &str,
        dtype: DType,
    ) -> Result<Option<HostTensor>, WeightsError> {
        let found = match &mut self.content {
            Content::Safetensors(tensors) => tensors.remove(name),
            Content::PyTorch(reader) => match reader.get(name) {
                Some(tensor) => read_pytorch(tensor).map_err(failed(&self.path))?,
                None => None,
            },
        };
        let Some(HostTensor { shape, data }) = found else { return Ok(None) };
        Ok(convert(data, dtype).map(|data| HostTensor { shape, data }))
    }
}

fn failed<E: Display>(path: &Path) -> impl FnOnce(E) -> WeightsError + use<'_, E> {
    |error| WeightsError::PyTorch { path: path.to_path_buf(), reason: error.to_string() }
}

/// Reads a tensor, unless no parameter could be of its type.
fn read_pytorch(tensor: &pytorch_reader::Tensor) -> std::io::Result<Option<HostTensor>> {
    let dtype = match tensor.dtype() {
        PyTorchType::F64 => DType::F64,
        PyTorchType::F32 => DType::F32,
        PyTorchType::F16 => DType::F16,
        PyTorchType::BF16 => DType::BF16,
        PyTorchType::I64 => DType::I64,
        PyTorchType::I32 => DType::I32,
        PyTorchType::U8 | PyTorchType::Bool => DType::U8,
        PyTorchType::I16
        | PyTorchType::I8
        | PyTorchType::U64
        | PyTorchType::U32
        | PyTorchType::U16 => return Ok(None),
    };
    let mut data = HostBuffer::zeros(dtype, tensor.num_elements());
    data.as_bytes_mut().copy_from_slice(&tensor.read()?);
    Ok(Some(HostTensor { shape: tensor.shape().to_vec(), data }))
}

/// Converts between floating-point types.
fn convert(data: HostBuffer, to: DType) -> Option<HostBuffer> {
    fn map<A: Copy, B>(values: &[A], convert: impl Fn(A) -> B) -> Vec<B> {
        values.iter().map(|value| convert(*value)).collect()
    }
    Some(match (data, to) {
        (data, to) if data.dtype() == to => data,
        (HostBuffer::F16(values), DType::F32) => map(&values, f32::from).into(),
        (HostBuffer::BF16(values), DType::F32) => map(&values, f32::from).into(),
        (HostBuffer::F64(values), DType::F32) => map(&values, |value| value as f32).into(),
        (HostBuffer::F16(values), DType::F64) => map(&values, f64::from).into(),
        (HostBuffer::BF16(values), DType::F64) => map(&values, f64::from).into(),
        (HostBuffer::F32(values), DType::F64) => map(&values, f64::from).into(),
        _ => return None,
    })
}
