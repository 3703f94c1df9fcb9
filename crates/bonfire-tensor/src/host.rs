//! Tensors as flat host memory and back.
//!
//! On the CPU device (Flex) a tensor that owns its memory becomes a `Vec` and a `Vec` becomes a
//! tensor without a copy; slices of a tensor are views.

use crate::TensorError;
use bonfire_comm::{DType as WireType, Element, HostBuffer};
use burn::backend::tensor::FloatTensor;
use burn::backend::{BackendTensor, DispatchTensor, DispatchTensorKind, Flex};
use burn::tensor::{DType, Device, Tensor, TensorData};
use std::ops::Range;

/// A floating-point element that gradients may have.
pub trait HostFloat: Element + burn::tensor::Element + core::ops::AddAssign {
    /// Burn's name of the type.
    const BURN: DType;
}

impl HostFloat for f32 {
    const BURN: DType = DType::F32;
}
impl HostFloat for f64 {
    const BURN: DType = DType::F64;
}
impl HostFloat for half::f16 {
    const BURN: DType = DType::F16;
}
impl HostFloat for half::bf16 {
    const BURN: DType = DType::BF16;
}

/// Returns the wire's name of a Burn element type.
///
/// # Errors
/// [`TensorError::UnsupportedDType`] for a type that has no place on the wire; `what` names the
/// tensor in the message.
pub fn wire_type(dtype: DType, what: &str) -> Result<WireType, TensorError> {
    match dtype {
        DType::F32 => Ok(WireType::F32),
        DType::F64 => Ok(WireType::F64),
        DType::F16 => Ok(WireType::F16),
        DType::BF16 => Ok(WireType::BF16),
        DType::I32 => Ok(WireType::I32),
        DType::I64 => Ok(WireType::I64),
        DType::U8 => Ok(WireType::U8),
        other => Err(TensorError::UnsupportedDType {
            what: what.to_string(),
            dtype: format!("{other:?}"),
        }),
    }
}

/// Returns Burn's name of a wire type.
pub fn burn_type(dtype: WireType) -> DType {
    match dtype {
        WireType::F32 => DType::F32,
        WireType::F64 => DType::F64,
        WireType::F16 => DType::F16,
        WireType::BF16 => DType::BF16,
        WireType::I32 => DType::I32,
        WireType::I64 => DType::I64,
        WireType::U8 => DType::U8,
    }
}

/// Moves a tensor to flat host memory, in row-major order.
///
/// No copy is made when the tensor is the only owner of CPU memory of exactly its size, and one of a
/// piece of shared CPU memory.
///
/// # Errors
/// [`TensorError::UnsupportedDType`], or [`TensorError::Read`] when the device fails.
pub fn to_host<const D: usize>(tensor: Tensor<D>) -> Result<HostBuffer, TensorError> {
    dispatch_to_host(tensor.without_autodiff().into_dispatch())
}

fn flex_to_host(primitive: FloatTensor<Flex>) -> Result<HostBuffer, TensorError> {
    let starts = primitive.layout().start_offset() == 0;
    let whole = starts
        && primitive.layout().num_elements() * primitive.dtype().size() == primitive.bytes().len();
    match if whole && primitive.is_unique() { None } else { copy_of_piece(&primitive) } {
        Some(copy) => Ok(copy),
        None => data_to_host(primitive.into_data()),
    }
}

/// Copies a tensor whose elements lie side by side.
fn copy_of_piece(primitive: &FloatTensor<Flex>) -> Option<HostBuffer> {
    fn copy<E: HostFloat>(primitive: &FloatTensor<Flex>) -> Option<HostBuffer>
    where
        HostBuffer: From<Vec<E>>,
    {
        primitive.as_slice::<E>().map(|values| HostBuffer::from(values.to_vec()))
    }
    match primitive.dtype() {
        DType::F32 => copy::<f32>(primitive),
        DType::F64 => copy::<f64>(primitive),
        DType::F16 => copy::<half::f16>(primitive),
        DType::BF16 => copy::<half::bf16>(primitive),
        _ => None,
    }
}

/// Moves Burn's host data into a buffer.
///
/// # Errors
/// [`TensorError::UnsupportedDType`].
pub fn data_to_host(data: TensorData) -> Result<HostBuffer, TensorError> {
    fn take<E: HostElement>(data: TensorData) -> Result<HostBuffer, TensorError>
    where
        HostBuffer: From<Vec<E>>,
    {
        let (bytes, _, _) = data.into_parts();
        let values = match bytes.try_into_vec::<E>() {
            Ok(values) => values,
            Err(bytes) => bytemuck::pod_collect_to_vec::<u8, E>(&bytes),
        };
        Ok(HostBuffer::from(values))
    }
    match wire_type(data.dtype(), "a tensor")? {
        WireType::F32 => take::<f32>(data),
        WireType::F64 => take::<f64>(data),
        WireType::F16 => take::<half::f16>(data),
        WireType::BF16 => take::<half::bf16>(data),
        WireType::I32 => take::<i32>(data),
        WireType::I64 => take::<i64>(data),
        WireType::U8 => take::<u8>(data),
    }
}

trait HostElement: Element + burn::tensor::Element {}
impl<T: Element + burn::tensor::Element> HostElement for T {}

/// Burn's host data over a buffer, without a copy.
pub fn host_to_data(buffer: HostBuffer, shape: &[usize]) -> TensorData {
    match buffer {
        HostBuffer::F32(values) => TensorData::new(values, shape),
        HostBuffer::F64(values) => TensorData::new(values, shape),
        HostBuffer::F16(values) => TensorData::new(values, shape),
        HostBuffer::BF16(values) => TensorData::new(values, shape),
        HostBuffer::I32(values) => TensorData::new(values, shape),
        HostBuffer::I64(values) => TensorData::new(values, shape),
        HostBuffer::U8(values) => TensorData::new(values, shape),
    }
}

/// Makes a flat tensor of the buffer's own type on `device`; on the CPU without a copy.
pub fn flat_from_host(buffer: HostBuffer, device: &Device) -> Tensor<1> {
    let dtype = burn_type(buffer.dtype());
    let shape = [buffer.len()];
    Tensor::from_data(host_to_data(buffer, &shape), (device, dtype))
}

/// Returns elements `range` of a flat tensor in the given shape; on the CPU a view.
pub fn view<const D: usize>(flat: &Tensor<1>, range: Range<usize>, shape: [usize; D]) -> Tensor<D> {
    let whole = range == (0..flat.dims()[0]);
    let part = if whole { flat.clone() } else { flat.clone().slice(range) };
    part.reshape(shape)
}

/// Copies the elements of a tensor into `output`, in row-major order.
///
/// # Errors
/// [`TensorError::Mismatch`] when length or type differ.
pub fn copy_to<E: HostFloat, const D: usize>(
    tensor: Tensor<D>,
    output: &mut [E],
) -> Result<(), TensorError> {
    write_dispatch(tensor.without_autodiff().into_dispatch(), output, false)
}

/// Reuses the memory of a flat tensor when nobody else holds it.
///
/// Returns `None` when the tensor is shared or does not lie on the CPU.
pub fn reclaim(flat: Tensor<1>) -> Option<HostBuffer> {
    let primitive = flat.try_into_primitive::<Flex>().ok()?;
    if !primitive.is_unique() {
        return None;
    }
    data_to_host(primitive.into_data()).ok()
}

/// Whether a tensor without autodiff lies in host memory.
pub fn is_on_host(tensor: &Tensor<1>) -> bool {
    matches!(tensor.clone().into_dispatch().kind, DispatchTensorKind::Flex(_))
}

/// Exclusive host memory of a CPU tensor, for kernels that work in place.
pub struct HostTensorMut(FloatTensor<Flex>);

impl HostTensorMut {
    /// Takes a flat tensor; `None` when it does not lie on the CPU.
    ///
    /// A tensor that others hold too is copied at the first call of [`slice_mut`](Self::slice_mut).
    pub fn take(tensor: Tensor<1>) -> Option<Self> {
        let primitive = tensor.try_into_primitive::<Flex>().ok()?;
        let whole = primitive.is_contiguous() && primitive.layout().start_offset() == 0;
        Some(Self(if whole { primitive } else { primitive.to_contiguous() }))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.layout().num_elements()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, or `None` when the tensor has another type.
    pub fn slice<E: HostFloat>(&self) -> Option<&[E]> {
        self.0.as_slice::<E>()
    }

    /// The elements for writing, or `None` when the tensor has another type.
    pub fn slice_mut<E: HostFloat>(&mut self) -> Option<&mut [E]> {
        if self.0.dtype() != E::BURN {
            return None;
        }
        let len = self.0.layout().num_elements();
        self.0.storage_mut::<E>().get_mut(..len)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    pub(crate) fn from_primitive(primitive: FloatTensor<Flex>) -> Self {
        Self(primitive)
    }

    pub(crate) fn into_primitive(self) -> FloatTensor<Flex> {
        self.0
    }

    /// Gives the tensor back.
    pub fn into_tensor(self) -> Tensor<1> {
        Tensor::from_primitive::<Flex>(self.0)
    }
}

/// Shows the elements of a contiguous CPU tensor as a flat one, which shares its memory.
pub(crate) fn flat_dispatch(tensor: &DispatchTensor) -> Option<Tensor<1>> {
    match &tensor.kind {
        DispatchTensorKind::Flex(BackendTensor::Float(primitive)) if primitive.is_contiguous() => {
            let len = primitive.layout().num_elements();
            Some(Tensor::from_primitive::<Flex>(primitive.reshape([len].into())))
        }
        _ => None,
    }
}

/// A tensor of any backend as a flat one in row-major order, on its device.
pub(crate) fn dispatch_to_flat(tensor: DispatchTensor) -> Tensor<1> {
    match tensor.kind {
        DispatchTensorKind::Flex(BackendTensor::Float(primitive)) => {
            let len = primitive.layout().num_elements();
            Tensor::from_primitive::<Flex>(primitive.to_contiguous().reshape([len].into()))
        }
        #[cfg(feature = "cuda")]
        DispatchTensorKind::Cube(BackendTensor::Float(primitive)) => {
            use burn::backend::TensorMetadata;
            use burn::backend::ops::FloatTensorOps;
            use burn_cubecl::Cube;
            let flat = burn::tensor::Shape::new([primitive.shape().num_elements()]);
            Tensor::from_primitive::<Cube>(Cube::float_reshape(primitive, flat))
        }
        kind => Tensor::from_dispatch(DispatchTensor { kind, autodiff: tensor.autodiff }),
    }
}

/// Whether a tensor is the only handle of CPU memory that holds its elements in row-major order.
pub(crate) fn owns_memory(tensor: &DispatchTensor) -> bool {
    match &tensor.kind {
        DispatchTensorKind::Flex(BackendTensor::Float(primitive)) => {
            let layout = primitive.layout();
            primitive.is_unique() && primitive.is_contiguous() && layout.start_offset() == 0
        }
        _ => false,
    }
}

/// The elements of a tensor of any backend, in row-major order; without a copy for one that
/// [`owns_memory`].
pub(crate) fn dispatch_to_host(tensor: DispatchTensor) -> Result<HostBuffer, TensorError> {
    match tensor.kind {
        DispatchTensorKind::Flex(BackendTensor::Float(primitive)) => flex_to_host(primitive),
        kind => {
            let tensor = DispatchTensor { kind, autodiff: tensor.autodiff };
            let data = Tensor::<1>::from_dispatch(tensor)
                .without_autodiff()
                .try_into_data()
                .map_err(|error| TensorError::Read { reason: format!("{error:?}") })?;
            data_to_host(data)
        }
    }
}

pub(crate) fn write_dispatch<E: HostFloat>(
    tensor: DispatchTensor,
    output: &mut [E],
    accumulate: bool,
) -> Result<(), TensorError> {
    match tensor.kind {
        DispatchTensorKind::Flex(BackendTensor::Float(primitive)) => {
            write_flex(&primitive, output, accumulate)
        }
        kind => {
            let buffer = dispatch_to_host(DispatchTensor { kind, autodiff: tensor.autodiff })?;
            let (len, dtype) = (buffer.len(), buffer.dtype());
            match buffer.as_slice::<E>() {
                Ok(values) if values.len() == output.len() => {
                    write_run(values, output, accumulate);
                    Ok(())
                }
                _ => Err(mismatch::<E>(output.len(), len, format!("{dtype:?}"))),
            }
        }
    }
}

fn mismatch<E: HostFloat>(expected: usize, got: usize, got_dtype: String) -> TensorError {
    TensorError::Mismatch {
        what: "a tensor copied to host memory".to_string(),
        expected,
        expected_dtype: E::DTYPE,
        got,
        got_dtype,
    }
}

fn write_flex<E: HostFloat>(
    tensor: &FloatTensor<Flex>,
    output: &mut [E],
    accumulate: bool,
) -> Result<(), TensorError> {
    let layout = tensor.layout();
    if tensor.dtype() != E::BURN || layout.num_elements() != output.len() {
        let dtype = format!("{:?}", tensor.dtype());
        return Err(mismatch::<E>(output.len(), layout.num_elements(), dtype));
    }
    if let Some(values) = tensor.as_slice::<E>() {
        write_run(values, output, accumulate);
        return Ok(());
    }
    let strided = Strided { storage: tensor.storage::<E>(), strides: layout.strides() };
    strided.write(layout.shape().as_slice(), layout.start_offset() as isize, output, accumulate);
    Ok(())
}

fn write_run<E: HostFloat>(values: &[E], output: &mut [E], accumulate: bool) {
    if accumulate {
        output.iter_mut().zip(values).for_each(|(sum, value)| *sum += *value);
    } else {
        output.copy_from_slice(values);
    }
}

/// Elements that lie in another order than row-major, copied without an intermediate.
struct Strided<'a, E> {
    storage: &'a [E],
    strides: &'a [isize],
}

impl<E: HostFloat> Strided<'_, E> {
    fn write(&self, shape: &[usize], offset: isize, output: &mut [E], accumulate: bool) {
        let dimension = self.strides.len() - shape.len();
        match shape {
            [] => self.put(offset, &mut output[0], accumulate),
            [_] => {
                let stride = self.strides[dimension];
                for (k, slot) in output.iter_mut().enumerate() {
                    self.put(offset + k as isize * stride, slot, accumulate);
                }
            }
            [len, rest @ ..] if *len > 0 => {
                let stride = self.strides[dimension];
                let block = output.len() / len;
                if block == 0 {
                    return;
                }
                for (k, part) in output.chunks_exact_mut(block).enumerate() {
                    self.write(rest, offset + k as isize * stride, part, accumulate);
                }
            }
            _ => {}
        }
    }

    fn put(&self, offset: isize, slot: &mut E, accumulate: bool) {
        let value = self.storage[offset as usize];
        if accumulate {
            *slot += value;
        } else {
            *slot = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_tensor_uses_the_buffer_s_memory_and_gives_it_back() {
        let buffer = HostBuffer::from(vec![1.0f32, 2.0, 3.0]);
        let address = buffer.as_bytes().as_ptr();
        let flat = flat_from_host(buffer, &Device::flex());
        let part = view::<2>(&flat, 1..3, [1, 2]);
        assert_eq!(part.clone().try_into_vec_as::<f32>().unwrap(), [2.0, 3.0]);
        assert!(reclaim(flat.clone()).is_none(), "others hold it");
        drop(part);
        let back = reclaim(flat).unwrap();
        assert_eq!(back.as_bytes().as_ptr(), address);
    }

    #[test]
    fn elements_in_any_order_are_written_row_by_row() {
        let values: Vec<f32> = (0..24).map(|k| k as f32).collect();
        let data = TensorData::new(values, [2, 3, 4]);
        let tensor = Tensor::<3>::from_data(data, &Device::flex());
        let cases = [
            tensor.clone().swap_dims(0, 2),
            tensor.clone().flip([1]),
            tensor.clone().slice([0..2, 1..3, 0..4]).swap_dims(1, 2),
            tensor.clone().slice([1..2, 2..3, 3..4]),
        ];
        for case in cases {
            let expected = case.clone().try_into_vec_as::<f32>().unwrap();
            let mut output = vec![-1.0f32; expected.len()];
            let read = to_host(case.clone()).unwrap();
            assert_eq!(read.as_slice::<f32>().unwrap(), expected);
            copy_to(case.clone(), &mut output).unwrap();
            assert_eq!(output, expected);
            write_dispatch(case.into_dispatch(), &mut output, true).unwrap();
            assert_eq!(output, expected.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
        }
    }

    #[test]
    fn other_lengths_and_types_are_refused() {
        let tensor = Tensor::<1>::zeros([3], &Device::flex());
        assert!(copy_to(tensor.clone(), &mut [0.0f32; 2]).is_err());
        let error = copy_to(tensor, &mut [0.0f64; 3]).unwrap_err().to_string();
        assert!(error.contains("F64") && error.contains("F32"), "{error}");
    }
}
