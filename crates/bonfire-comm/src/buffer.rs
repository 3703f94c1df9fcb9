//! Memory that a collective owns while it runs.

use half::{bf16, f16};

use crate::engine::MemoryKind;
use crate::{CommError, DType, DeviceBuffer, Element, Result};

/// Owned, typed host memory: a `Vec<T>` moved in without a copy and out again without a copy.
#[derive(Debug, Clone, PartialEq)]
pub enum HostBuffer {
    /// Elements of type `f32`.
    F32(Vec<f32>),
    /// Elements of type `f64`.
    F64(Vec<f64>),
    /// Elements of type `f16`.
    F16(Vec<f16>),
    /// Elements of type `bf16`.
    BF16(Vec<bf16>),
    /// Elements of type `i32`.
    I32(Vec<i32>),
    /// Elements of type `i64`.
    I64(Vec<i64>),
    /// Elements of type `u8`.
    U8(Vec<u8>),
}

/// Runs the same expression for the vector of whichever type the buffer holds.
macro_rules! with_vec {
    ($buffer:expr, $vec:ident => $body:expr) => {
        match $buffer {
            HostBuffer::F32($vec) => $body,
            HostBuffer::F64($vec) => $body,
            HostBuffer::F16($vec) => $body,
            HostBuffer::BF16($vec) => $body,
            HostBuffer::I32($vec) => $body,
            HostBuffer::I64($vec) => $body,
            HostBuffer::U8($vec) => $body,
        }
    };
}

impl HostBuffer {
    /// Creates a buffer of `len` zeros.
    pub fn zeros(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(vec![0.0; len]),
            DType::F64 => Self::F64(vec![0.0; len]),
            DType::F16 => Self::F16(vec![f16::ZERO; len]),
            DType::BF16 => Self::BF16(vec![bf16::ZERO; len]),
            DType::I32 => Self::I32(vec![0; len]),
            DType::I64 => Self::I64(vec![0; len]),
            DType::U8 => Self::U8(vec![0; len]),
        }
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
            Self::U8(_) => DType::U8,
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        with_vec!(self, vec => vec.len())
    }

    /// Tells whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Views the elements as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        with_vec!(self, vec => bytemuck::cast_slice(vec))
    }

    /// Views the elements as mutable bytes.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        with_vec!(self, vec => bytemuck::cast_slice_mut(vec))
    }

    /// Views the elements as a slice of `T`.
    ///
    /// # Errors
    /// [`CommError::WrongDType`] when the buffer holds another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.expect_dtype::<T>()?;
        Ok(bytemuck::cast_slice(self.as_bytes()))
    }

    /// Views the elements as a mutable slice of `T`.
    ///
    /// # Errors
    /// [`CommError::WrongDType`] when the buffer holds another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.expect_dtype::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.as_bytes_mut()))
    }

    /// Moves the vector out without a copy.
    ///
    /// # Errors
    /// [`CommError::WrongDType`] when the buffer holds another type.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>> {
        self.expect_dtype::<T>()?;
        Ok(with_vec!(self, vec => bytemuck::cast_vec(vec)))
    }

    fn expect_dtype<T: Element>(&self) -> Result<()> {
        if self.dtype() == T::DTYPE {
            return Ok(());
        }
        Err(CommError::WrongDType { expected: T::DTYPE, got: self.dtype() })
    }
}

impl<T: Element> From<Vec<T>> for HostBuffer {
    fn from(vec: Vec<T>) -> Self {
        match T::DTYPE {
            DType::F32 => Self::F32(bytemuck::cast_vec(vec)),
            DType::F64 => Self::F64(bytemuck::cast_vec(vec)),
            DType::F16 => Self::F16(bytemuck::cast_vec(vec)),
            DType::BF16 => Self::BF16(bytemuck::cast_vec(vec)),
            DType::I32 => Self::I32(bytemuck::cast_vec(vec)),
            DType::I64 => Self::I64(bytemuck::cast_vec(vec)),
            DType::U8 => Self::U8(bytemuck::cast_vec(vec)),
        }
    }
}

/// Memory handed to an asynchronous collective and handed back by [`Work::wait`](crate::Work).
///
/// It is owned, never borrowed: no slice that the caller can still see is written from another
/// thread.
#[derive(Debug)]
pub enum Buffer {
    /// Host memory.
    Host(HostBuffer),
    /// Device memory.
    Device(DeviceBuffer),
}

impl Buffer {
    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Host(host) => host.dtype(),
            Self::Device(device) => device.dtype(),
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(host) => host.len(),
            Self::Device(device) => device.len(),
        }
    }

    /// Tells whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns where the memory lives.
    pub fn memory(&self) -> MemoryKind {
        match self {
            Self::Host(_) => MemoryKind::Host,
            Self::Device(_) => MemoryKind::Device,
        }
    }

    /// Returns the host memory.
    ///
    /// # Errors
    /// [`CommError::WrongMemory`] for a device buffer.
    pub fn into_host(self) -> Result<HostBuffer> {
        match self {
            Self::Host(host) => Ok(host),
            Self::Device(_) => Err(CommError::WrongMemory { expected: MemoryKind::Host }),
        }
    }

    /// Returns the device memory.
    ///
    /// # Errors
    /// [`CommError::WrongMemory`] for a host buffer.
    pub fn into_device(self) -> Result<DeviceBuffer> {
        match self {
            Self::Device(device) => Ok(device),
            Self::Host(_) => Err(CommError::WrongMemory { expected: MemoryKind::Device }),
        }
    }

    /// Returns host memory as a `Vec<T>`, without a copy.
    ///
    /// # Errors
    /// [`CommError::WrongMemory`] for a device buffer, [`CommError::WrongDType`] for another type.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>> {
        self.into_host()?.into_vec()
    }
}

impl<T: Element> From<Vec<T>> for Buffer {
    fn from(vec: Vec<T>) -> Self {
        Self::Host(vec.into())
    }
}

impl From<HostBuffer> for Buffer {
    fn from(host: HostBuffer) -> Self {
        Self::Host(host)
    }
}

impl From<DeviceBuffer> for Buffer {
    fn from(device: DeviceBuffer) -> Self {
        Self::Device(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_moves_in_and_out_without_a_copy() {
        let vec = vec![1.0f32, 2.0, 3.0];
        let address = vec.as_ptr();
        let buffer = Buffer::from(vec);
        assert_eq!((buffer.dtype(), buffer.len()), (DType::F32, 3));
        let vec = buffer.into_vec::<f32>().unwrap();
        assert_eq!((vec.as_ptr(), vec), (address, vec![1.0, 2.0, 3.0]));
    }

    #[test]
    fn another_type_is_refused() {
        let error = HostBuffer::from(vec![1i64]).into_vec::<f32>().unwrap_err();
        assert_eq!(error.to_string(), "buffer holds i64 elements, f32 was asked for");
    }
}
