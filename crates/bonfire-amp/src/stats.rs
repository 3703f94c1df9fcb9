//! Norm and overflow of flat gradients, in one pass.

use crate::NormType;
use bonfire_comm::HostBuffer;
use bonfire_tensor::TensorError;
use bonfire_tensor::host::{HostTensorMut, is_on_host, to_host};
use burn::tensor::{DType, Tensor};
use std::ops::Range;

/// Sums side by side, so that they fill the processor's vectors.
const LANES: usize = 16;
/// Elements of each of four places that are summed in their own type before they meet the others in
/// f64.
const PIECE: usize = 256;

/// Figures of a set of gradients; of several sets by [`and`](Self::and).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradientStats {
    norm_type: NormType,
    /// Sum of squares, or largest absolute value.
    total: f64,
    finite: bool,
}

impl GradientStats {
    /// The figures of no gradients.
    pub fn none(norm_type: NormType) -> Self {
        Self { norm_type, total: 0.0, finite: true }
    }

    /// Figures that were computed elsewhere: the sum of squares or largest absolute value, and whether
    /// all elements are finite.
    pub fn from_parts(norm_type: NormType, total: f64, finite: bool) -> Self {
        Self { norm_type, total, finite }
    }

    /// Reads elements `range` of a buffer.
    pub fn of_host(buffer: &HostBuffer, range: Range<usize>, norm_type: NormType) -> Self {
        match buffer {
            HostBuffer::F32(values) => Self::of_slice(part(values, range), norm_type),
            HostBuffer::F64(values) => Self::of_slice(part(values, range), norm_type),
            HostBuffer::F16(values) => Self::of_slice(part(values, range), norm_type),
            HostBuffer::BF16(values) => Self::of_slice(part(values, range), norm_type),
            HostBuffer::I32(_) | HostBuffer::I64(_) | HostBuffer::U8(_) => Self::none(norm_type),
        }
    }

    /// Reads a flat tensor: in its memory on the CPU, by tensor operations elsewhere.
    ///
    /// # Errors
    /// When the device fails.
    pub fn of_tensor(flat: &Tensor<1>, norm_type: NormType) -> Result<Self, TensorError> {
        if is_on_host(flat)
            && let Some(host) = HostTensorMut::take(flat.clone())
        {
            let stats = match host.dtype() {
                DType::F64 => host.slice::<f64>().map(|values| Self::of_slice(values, norm_type)),
                DType::F16 => {
                    host.slice::<half::f16>().map(|values| Self::of_slice(values, norm_type))
                }
                DType::BF16 => {
                    host.slice::<half::bf16>().map(|values| Self::of_slice(values, norm_type))
                }
                _ => host.slice::<f32>().map(|values| Self::of_slice(values, norm_type)),
            };
            if let Some(stats) = stats {
                return Ok(stats);
            }
        }
        Self::on_device(flat.clone(), norm_type)
    }

    fn on_device(flat: Tensor<1>, norm_type: NormType) -> Result<Self, TensorError> {
        let flat = match flat.dtype() {
            DType::F64 => flat,
            _ => flat.cast(DType::F32),
        };
        let largest = flat.clone().abs().max();
        // Squares of an f32 may overflow where the elements do not: a look at the largest first, and
        // at each element, since a NaN may not be the largest.
        let finite = scalar(flat.clone().is_finite().all().float())? == 1.0;
        let largest = scalar(largest)?;
        let total = match norm_type {
            _ if !finite => f64::NAN,
            NormType::Infinity => largest,
            NormType::Two if largest == 0.0 => 0.0,
            NormType::Two => {
                let shrunk = flat.div_scalar(largest);
                scalar((shrunk.clone() * shrunk).sum())? * largest * largest
            }
        };
        Ok(Self { norm_type, total, finite })
    }

    /// Sum of squares, or largest absolute value, of the elements of a flat tensor times `factor`
    /// (shape `[1]`), as a tensor of shape `[1]` and type f32 that nobody waits for.
    ///
    /// Not finite when an element is not, and in a sum of squares above 3e38, the square of a norm
    /// with which no training goes on.
    pub fn total_on_device(flat: &Tensor<1>, factor: &Tensor<1>, norm_type: NormType) -> Tensor<1> {
        let flat = match flat.dtype() {
            DType::F32 => flat.clone(),
            _ => flat.clone().cast(DType::F32),
        };
        let scaled = flat * factor.clone();
        match norm_type {
            NormType::Two => scaled.square().sum(),
            // A largest value may pass a NaN over; a sum of zeros does not.
            NormType::Infinity => scaled.clone().abs().max() + scaled.mul_scalar(0.0).sum(),
        }
    }

    fn of_slice<E: Copy + ToF64>(values: &[E], norm_type: NormType) -> Self {
        match norm_type {
            NormType::Two => {
                let total = sum_of_squares(values);
                // The sum tells: squares of 16 and 32 bits cannot overflow in f64. Those of 64 can.
                let finite =
                    total.is_finite() || values.iter().all(|value| value.to_f64().is_finite());
                Self { norm_type, total, finite }
            }
            NormType::Infinity => {
                let (total, finite) = largest(values);
                Self { norm_type, total, finite }
            }
        }
    }

    /// The figures of both sets together.
    pub fn and(self, other: Self) -> Self {
        let total = match self.norm_type {
            NormType::Two => self.total + other.total,
            NormType::Infinity => self.total.max(other.total),
        };
        Self { norm_type: self.norm_type, total, finite: self.finite && other.finite }
    }

    /// Sum of squares or largest absolute value: what ranks with different gradients add, or compare.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Whether all elements are finite.
    pub fn is_finite(&self) -> bool {
        self.finite
    }

    /// The norm; NaN or infinite unless all elements are finite.
    pub fn norm(&self) -> f64 {
        match self.norm_type {
            NormType::Two => self.total.sqrt(),
            NormType::Infinity if !self.finite => f64::NAN,
            NormType::Infinity => self.total,
        }
    }
}

fn part<T>(values: &[T], range: Range<usize>) -> &[T] {
    values.get(range).unwrap_or_default()
}

trait ToF64: Sized {
    fn to_f64(self) -> f64;

    /// The sum of squares by faster arithmetic, where it is exact enough.
    fn quick_sum(_pieces: [&[Self]; 4]) -> Option<f64> {
        None
    }
}

impl ToF64 for f32 {
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn quick_sum(pieces: [&[Self]; 4]) -> Option<f64> {
        quick_sum_f32(pieces)
    }
}

impl ToF64 for f64 {
    fn to_f64(self) -> f64 {
        self
    }
}

impl ToF64 for half::f16 {
    fn to_f64(self) -> f64 {
        f64::from(self.to_f32())
    }
}

impl ToF64 for half::bf16 {
    fn to_f64(self) -> f64 {
        f64::from(self.to_f32())
    }
}

/// Reads four places at once, which keeps more of the memory's channels busy than one does.
fn sum_of_squares<E: Copy + ToF64>(values: &[E]) -> f64 {
    let quarter = values.len() / 4 / PIECE * PIECE;
    let (streams, rest) = values.split_at(4 * quarter);
    let mut total = exact_sum(rest);
    for start in (0..quarter).step_by(PIECE) {
        let pieces = [0, 1, 2, 3].map(|stream| {
            let start = stream * quarter + start;
            &streams[start..start + PIECE]
        });
        total += E::quick_sum(pieces).unwrap_or_else(|| pieces.map(exact_sum).iter().sum());
    }
    total
}

/// A sum of squares in f64.
fn exact_sum<E: Copy + ToF64>(values: &[E]) -> f64 {
    let mut sums = [0.0f64; LANES];
    for chunk in values.chunks(LANES) {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            let value = value.to_f64();
            *sum += value * value;
        }
    }
    sums.iter().sum()
}

/// The sum of squares of four pieces in f32, unless it is so small or large that squares may have left
/// the range of f32. Relative error below 1e-5, and far below in the sum of many.
fn quick_sum_f32([a, b, c, d]: [&[f32]; 4]) -> Option<f64> {
    let mut sums = [0.0f32; LANES];
    let chunks = a.chunks_exact(LANES).zip(b.chunks_exact(LANES));
    let more = c.chunks_exact(LANES).zip(d.chunks_exact(LANES));
    for ((a, b), (c, d)) in chunks.zip(more) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum +=
                (a[lane] * a[lane] + b[lane] * b[lane]) + (c[lane] * c[lane] + d[lane] * d[lane]);
        }
    }
    let total = sums.into_iter().map(f64::from).sum();
    (1e-20..1e30).contains(&total).then_some(total)
}

/// The largest absolute value, and whether all values are finite.
fn largest<E: Copy + ToF64>(values: &[E]) -> (f64, bool) {
    let mut largest = [0.0f64; LANES];
    // Zero times a value is zero, or NaN where the value is not finite.
    let mut poison = [0.0f64; LANES];
    for chunk in values.chunks(LANES) {
        for ((largest, poison), value) in largest.iter_mut().zip(&mut poison).zip(chunk) {
            let value = value.to_f64();
            let size = value.abs();
            *largest = if size > *largest { size } else { *largest };
            *poison += value * 0.0;
        }
    }
    let finite = poison.iter().sum::<f64>() == 0.0;
    (largest.into_iter().fold(0.0, f64::max), finite)
}

fn scalar(tensor: Tensor<1>) -> Result<f64, TensorError> {
    Ok(match to_host(tensor)? {
        HostBuffer::F64(values) => values.into_iter().sum(),
        HostBuffer::F32(values) => values.into_iter().map(f64::from).sum(),
        _ => f64::NAN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    const NORMS: [NormType; 2] = [NormType::Two, NormType::Infinity];

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|k| ((k * 37 % 101) as f32 - 50.0) * 0.125).collect()
    }

    #[test]
    fn norms_of_any_length_are_those_of_a_plain_sum() {
        for len in [0, 1, 15, 16, 17, 1000, 1024, 3001] {
            let values = values(len);
            let squares: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
            let buffer = HostBuffer::from(values.clone());
            let stats = GradientStats::of_host(&buffer, 0..len, NormType::Two);
            assert!((stats.norm() - squares.sqrt()).abs() <= 1e-6 * squares.sqrt(), "{len}");
            let double = HostBuffer::from(values.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
            let stats = GradientStats::of_host(&double, 0..len, NormType::Two);
            assert!((stats.norm() - squares.sqrt()).abs() <= 1e-12 * squares.sqrt(), "{len}");
            let largest = values.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            let stats = GradientStats::of_host(&buffer, 0..len, NormType::Infinity);
            assert_eq!((stats.norm(), stats.is_finite()), (f64::from(largest), true));
        }
    }

    #[test]
    fn one_bad_element_anywhere_is_found() {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            for place in [0, 7, 16, 98] {
                let mut values = values(99);
                values[place] = bad;
                let tensor = Tensor::<1>::from_data(values.as_slice(), &Device::flex());
                let buffer = HostBuffer::from(values);
                for norm in NORMS {
                    for stats in [
                        GradientStats::of_host(&buffer, 0..99, norm),
                        GradientStats::of_tensor(&tensor, norm).unwrap(),
                        GradientStats::on_device(tensor.clone(), norm).unwrap(),
                    ] {
                        assert!(!stats.is_finite() && !stats.norm().is_finite(), "{bad} {norm:?}");
                        let all =
                            GradientStats::none(norm).and(stats).and(GradientStats::none(norm));
                        assert!(!all.is_finite());
                    }
                    let before = GradientStats::of_host(&buffer, 0..place, norm);
                    assert!(before.is_finite(), "elements outside the range do not count");
                }
            }
        }
    }

    #[test]
    fn squares_too_small_for_their_type_count() {
        let buffer = HostBuffer::from(vec![3e-30f32; 1024]);
        let stats = GradientStats::of_host(&buffer, 0..1024, NormType::Two);
        assert!((stats.norm() / 96e-30 - 1.0).abs() < 1e-6, "{}", stats.norm());
    }

    #[test]
    fn finite_elements_with_infinite_squares_are_no_overflow() {
        let buffer = HostBuffer::from(vec![1e30f32, -2e30]);
        let stats = GradientStats::of_host(&buffer, 0..2, NormType::Two);
        assert!(stats.is_finite() && (stats.norm() / 5f64.sqrt() - 1e30).abs() < 1e24);
        let tensor = Tensor::<1>::from_data([1e30f32, -2e30], &Device::flex());
        let stats = GradientStats::on_device(tensor, NormType::Two).unwrap();
        assert!(stats.is_finite() && (stats.norm() / 5f64.sqrt() - 1e30).abs() < 1e24);
        let stats = GradientStats::of_host(&vec![1e200f64].into(), 0..1, NormType::Two);
        assert!(stats.is_finite());
    }

    #[test]
    fn totals_on_a_device_are_those_of_a_plain_sum_and_show_a_bad_element() {
        let one = |tensor: Tensor<1>| tensor.into_scalar::<f32>();
        let factor = Tensor::<1>::from_data([0.5f32], &Device::flex());
        for dtype in [DType::F32, DType::F16] {
            let tensor = Tensor::<1>::from_data([3.0f32, -4.0, 0.0], &Device::flex()).cast(dtype);
            let total = |norm| one(GradientStats::total_on_device(&tensor, &factor, norm));
            assert_eq!((total(NormType::Two), total(NormType::Infinity)), (6.25, 2.0));
        }
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let tensor = Tensor::<1>::from_data([1.0f32, bad, 2.0], &Device::flex());
            for norm in NORMS {
                let total = GradientStats::total_on_device(&tensor, &factor, norm);
                assert!(!one(total).is_finite(), "{bad} {norm:?}");
            }
        }
    }

    #[test]
    fn host_memory_and_tensor_operations_agree_in_every_type() {
        let tensor = Tensor::<1>::from_data(values(100).as_slice(), &Device::flex());
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for norm in NORMS {
                let tensor = tensor.clone().cast(dtype);
                let host = GradientStats::of_tensor(&tensor, norm).unwrap();
                let device = GradientStats::on_device(tensor, norm).unwrap();
                assert!((host.norm() - device.norm()).abs() < 1e-5 * host.norm(), "{dtype:?}");
            }
        }
    }
}
