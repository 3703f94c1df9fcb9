//! Reduction of one span of elements into another.

use std::fmt;

use half::{bf16, f16};

use crate::{CommError, DType, Result, simd};

/// How elements of several ranks are combined.
///
/// Sums of integers wrap; the mean of integers is the sum divided with truncation. Half types
/// are combined in `f32`; they are
/// rounded once where a rank has all contributions (shared memory, small exchanges within it, MPI), and
/// after each rank where partial results travel. A NaN on any rank gives NaN, for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum over ranks.
    Sum,
    /// The sum over ranks divided by the number of ranks.
    Mean,
    /// The product over ranks; of integers it wraps.
    Product,
    /// The smallest element.
    Min,
    /// The largest element.
    Max,
}

impl ReduceOp {
    /// Every operation, in the order of the wire codes.
    pub const ALL: [ReduceOp; 5] = [Self::Sum, Self::Mean, Self::Product, Self::Min, Self::Max];
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
        })
    }
}

/// A reduction as it is carried out: a mean is a sum, and a division at the last contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reduction {
    /// How two elements are combined.
    pub(crate) op: ReduceOp,
    /// What the result is divided by, once it is complete.
    pub(crate) divide_by: Option<usize>,
}

impl Reduction {
    /// A step that is not the last.
    pub(crate) fn partial(op: ReduceOp) -> Self {
        Self { op, divide_by: None }
    }

    /// The last of `ranks` contributions.
    pub(crate) fn last(op: ReduceOp, ranks: usize) -> Self {
        Self { op, divide_by: (op == ReduceOp::Mean).then_some(ranks) }
    }
}

trait Arithmetic: bytemuck::Pod {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn divide(self, count: usize) -> Self;
}

macro_rules! float_arithmetic {
    ($($type:ty),*) => {$(
        impl Arithmetic for $type {
            fn add(self, other: Self) -> Self { self + other }
            fn multiply(self, other: Self) -> Self { self * other }
            // `a < b` is false when a NaN is involved: the last test lets it win. Of two zeros the
            // sign decides, so that the order of the operands does not.
            #[allow(clippy::eq_op, reason = "the portable test for NaN that vectorises")]
            fn smaller(self, other: Self) -> Self {
                let tie = other == self && other.is_sign_negative();
                if other < self || tie || other != other { other } else { self }
            }
            #[allow(clippy::eq_op, reason = "the portable test for NaN that vectorises")]
            fn larger(self, other: Self) -> Self {
                let tie = other == self && other.is_sign_positive();
                if other > self || tie || other != other { other } else { self }
            }
            fn divide(self, count: usize) -> Self { self / count as $type }
        }
    )*};
}
float_arithmetic!(f32, f64);

macro_rules! integer_arithmetic {
    ($($type:ty as $wide:ty),*) => {$(
        impl Arithmetic for $type {
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            fn multiply(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn smaller(self, other: Self) -> Self { self.min(other) }
            fn larger(self, other: Self) -> Self { self.max(other) }
            // Widened, because 300 ranks do not fit into the u8 that they divide.
            fn divide(self, count: usize) -> Self { (<$wide>::from(self) / count as $wide) as $type }
        }
    )*};
}
integer_arithmetic!(i32 as i128, i64 as i128, u8 as u64);

fn reduce<T: Arithmetic>(op: ReduceOp, target: &mut [T], source: &[T]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => simd::fold(target, source, T::add),
        ReduceOp::Product => simd::fold(target, source, T::multiply),
        ReduceOp::Min => simd::fold(target, source, T::smaller),
        ReduceOp::Max => simd::fold(target, source, T::larger),
    }
}

fn reduce_half<T: simd::Half>(op: ReduceOp, target: &mut [T], source: &[T]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => T::fold(target, source, f32::add),
        ReduceOp::Product => T::fold(target, source, f32::multiply),
        ReduceOp::Min => T::fold(target, source, f32::smaller),
        ReduceOp::Max => T::fold(target, source, f32::larger),
    }
}

fn combine<T: Arithmetic>(reduction: Reduction, target: &mut [T], sources: &[&[T]]) {
    for source in sources {
        reduce(reduction.op, target, source);
    }
    if let Some(count) = reduction.divide_by {
        divide(target, count);
    }
}

/// Elements converted to f32 at a time.
const BLOCK: usize = 512;

/// Rounds once, when everything is combined and divided.
fn combine_half<T: simd::Half>(reduction: Reduction, target: &mut [T], sources: &[&[T]]) {
    if let ([source], None) = (sources, reduction.divide_by) {
        return reduce_half(reduction.op, target, source);
    }
    let (mut sum, mut wide) = ([0f32; BLOCK], [0f32; BLOCK]);
    for (index, target) in target.chunks_mut(BLOCK).enumerate() {
        let (sum, wide) = (&mut sum[..target.len()], &mut wide[..target.len()]);
        T::widen(target, sum);
        for source in sources {
            T::widen(&source[index * BLOCK..][..target.len()], wide);
            reduce(reduction.op, sum, wide);
        }
        if let Some(count) = reduction.divide_by {
            divide(sum, count);
        }
        T::narrow(sum, target);
    }
}

fn divide<T: Arithmetic>(target: &mut [T], count: usize) {
    target.iter_mut().for_each(|value| *value = value.divide(count));
}

fn view<T: bytemuck::Pod>(bytes: &[u8]) -> Result<&[T]> {
    bytemuck::try_cast_slice(bytes).map_err(misaligned)
}

fn view_mut<T: bytemuck::Pod>(bytes: &mut [u8]) -> Result<&mut [T]> {
    bytemuck::try_cast_slice_mut(bytes).map_err(misaligned)
}

fn misaligned(error: bytemuck::PodCastError) -> CommError {
    CommError::Internal { detail: format!("span of elements cannot be viewed: {error}") }
}

/// Combines `sources`, in their order, into `target`, element by element:
/// `target = ((target op a) op b) ...`, divided at the end if the reduction says so.
pub(crate) fn combine_bytes(
    dtype: DType,
    reduction: Reduction,
    target: &mut [u8],
    sources: &[&[u8]],
) -> Result<()> {
    fn views<'a, T: bytemuck::Pod>(sources: &[&'a [u8]]) -> Result<Vec<&'a [T]>> {
        sources.iter().map(|source| view(source)).collect()
    }
    // Empty memory need not be aligned.
    if target.is_empty() {
        return Ok(());
    }
    match dtype {
        DType::F32 => combine::<f32>(reduction, view_mut(target)?, &views(sources)?),
        DType::F64 => combine::<f64>(reduction, view_mut(target)?, &views(sources)?),
        DType::F16 => combine_half::<f16>(reduction, view_mut(target)?, &views(sources)?),
        DType::BF16 => combine_half::<bf16>(reduction, view_mut(target)?, &views(sources)?),
        DType::I32 => combine::<i32>(reduction, view_mut(target)?, &views(sources)?),
        DType::I64 => combine::<i64>(reduction, view_mut(target)?, &views(sources)?),
        DType::U8 => combine::<u8>(reduction, view_mut(target)?, &views(sources)?),
    }
    Ok(())
}

/// As [`combine_bytes`] of one source with the operands exchanged: `target = source op target`. Leaves
/// the result in `source` too.
///
/// Two ranks that both combine the same two buffers get the same bits only if both name the
/// operands in the same order: it decides between NaNs.
pub(crate) fn combine_bytes_swapped(
    dtype: DType,
    reduction: Reduction,
    target: &mut [u8],
    source: &mut [u8],
) -> Result<()> {
    combine_bytes(dtype, reduction, source, &[target])?;
    target.copy_from_slice(source);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T: crate::Element>(op: ReduceOp, mut target: Vec<T>, source: &[T]) -> Vec<T> {
        let bytes = bytemuck::cast_slice_mut(&mut target);
        let reduction = Reduction::partial(op);
        combine_bytes(T::DTYPE, reduction, bytes, &[bytemuck::cast_slice(source)]).unwrap();
        target
    }

    #[test]
    fn a_nan_wins_on_either_side() {
        for op in ReduceOp::ALL {
            let result = run(op, vec![f32::NAN, 1.0], &[1.0, f32::NAN]);
            assert!(result.iter().all(|value| value.is_nan()), "{op}: {result:?}");
        }
    }

    #[test]
    fn integers_wrap_and_truncate() {
        assert_eq!(run(ReduceOp::Sum, vec![250u8], &[10]), [4]);
        assert_eq!(run(ReduceOp::Min, vec![-5i64], &[3]), [-5]);
        let mut values = vec![-7i32, 7];
        let mean = Reduction::last(ReduceOp::Mean, 2);
        combine_bytes(DType::I32, mean, bytemuck::cast_slice_mut(&mut values), &[]).unwrap();
        assert_eq!(values, [-3, 3]);
    }

    /// All pairs of some values, and of all 16-bit patterns with one of them.
    fn check_half<T: crate::Element + simd::Half>(
        from_bits: fn(u16) -> T,
        to_f32: fn(T) -> f32,
        from_f32: fn(f32) -> T,
    ) {
        let some =
            [0u16, 0x8000, 1, 0x3c00, 0x3f80, 0x7bff, 0x7c00, 0x7f80, 0xff80, 0x7fc1, 0x4248];
        let all: Vec<T> = (0..=u16::MAX).map(from_bits).collect();
        for other in some.map(from_bits) {
            let others = vec![other; all.len()];
            let sums = run(ReduceOp::Sum, all.clone(), &others);
            let products = run(ReduceOp::Product, all.clone(), &others);
            for ((left, sum), product) in all.iter().zip(sums).zip(products) {
                let (left, right) = (to_f32(*left), to_f32(other));
                for (got, expected) in [(sum, left + right), (product, left * right)] {
                    let expected = to_f32(from_f32(expected));
                    let same = to_f32(got).to_bits() == expected.to_bits();
                    assert!(same || (to_f32(got).is_nan() && expected.is_nan()), "{left} {right}");
                }
            }
        }
    }

    #[test]
    fn halves_round_as_their_crate_does() {
        check_half(f16::from_bits, f16::to_f32, f16::from_f32);
        check_half(bf16::from_bits, bf16::to_f32, bf16::from_f32);
    }

    #[test]
    fn the_order_of_operands_does_not_decide_between_zeros() {
        for (op, expected) in [(ReduceOp::Min, -0.0f64), (ReduceOp::Max, 0.0)] {
            for (left, right) in [(0.0f64, -0.0), (-0.0, 0.0)] {
                let got = run(op, vec![left], &[right])[0];
                assert_eq!(got.to_bits(), expected.to_bits(), "{op} of {left} and {right}");
            }
        }
    }

    #[test]
    fn halves_of_several_ranks_are_rounded_once() {
        let half = |value: f32| f16::from_f32(value);
        let combined = |op, ranks: &[f32]| {
            let values: Vec<[u8; 2]> = ranks.iter().map(|v| half(*v).to_ne_bytes()).collect();
            let mut target = [half(ranks[0])];
            let sources: Vec<&[u8]> = values[1..].iter().map(|v| v.as_slice()).collect();
            let reduction = Reduction::last(op, ranks.len());
            let bytes = bytemuck::cast_slice_mut(&mut target);
            // Two bytes on the stack may lie anywhere; the table has vectors.
            let aligned: Vec<Vec<u16>> =
                sources.iter().map(|s| vec![u16::from_ne_bytes([s[0], s[1]])]).collect();
            let sources: Vec<&[u8]> = aligned.iter().map(|v| bytemuck::cast_slice(v)).collect();
            combine_bytes(DType::F16, reduction, bytes, &sources).unwrap();
            target[0].to_f32()
        };
        assert_eq!(
            combined(ReduceOp::Mean, &[40000.0, 40000.0]),
            40000.0,
            "no overflow on the way"
        );
        assert_eq!(combined(ReduceOp::Sum, &[2048.0, 1.0, 1.0]), 2050.0, "2049 is no f16");
    }

    #[test]
    fn halves_are_added_in_single_precision() {
        let target = vec![f16::from_f32(1.5); BLOCK + 3];
        let result = run(ReduceOp::Sum, target.clone(), &target);
        assert!(result.iter().all(|value| value.to_f32() == 3.0));
        assert_eq!(result.len(), BLOCK + 3);
    }
}
