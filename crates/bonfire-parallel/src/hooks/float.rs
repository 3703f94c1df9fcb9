//! The element types that hooks compress.

use super::half::Half;
use bonfire_comm::Element;
use core::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};

/// The arithmetic that hooks need of `f32` and `f64`.
pub(super) trait HookFloat:
    Element
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + SubAssign
{
    /// The bits of an absolute value, which order as the values do; behind all numbers come infinity
    /// and NaN.
    type Magnitude: Ord + Copy + Default;

    const ZERO: Self;
    const ONE: Self;
    const NAN: Self;
    const INFINITY: Self;
    /// Distance from 1 to the next number.
    const EPSILON: Self;

    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
    fn to_f32(self) -> f32;
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;
    fn is_finite(self) -> bool;
    fn magnitude(self) -> Self::Magnitude;

    /// The vector for magnitudes of this type.
    fn magnitudes(of: &mut Magnitudes) -> &mut Vec<Self::Magnitude>;
    /// Rounds to 16 bits.
    fn narrow<H: Half>(values: &[Self], halves: &mut [H]);
    /// Converts from 16 bits.
    fn widen<H: Half>(halves: &[H], values: &mut [Self]);
}

/// Memory for magnitudes of either type, kept between steps.
#[derive(Default)]
pub(super) struct Magnitudes {
    of_f32: Vec<u32>,
    of_f64: Vec<u64>,
}

macro_rules! hook_float {
    ($type:ty, $bits:ty, $magnitudes:ident, $narrow:ident, $widen:ident) => {
        impl HookFloat for $type {
            type Magnitude = $bits;

            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NAN: Self = <$type>::NAN;
            const INFINITY: Self = <$type>::INFINITY;
            const EPSILON: Self = <$type>::EPSILON;

            fn from_f32(value: f32) -> Self {
                <$type>::from(value)
            }
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn abs(self) -> Self {
                <$type>::abs(self)
            }
            fn sqrt(self) -> Self {
                <$type>::sqrt(self)
            }
            fn is_finite(self) -> bool {
                <$type>::is_finite(self)
            }
            fn magnitude(self) -> $bits {
                <$type>::abs(self).to_bits()
            }
            fn magnitudes(of: &mut Magnitudes) -> &mut Vec<$bits> {
                &mut of.$magnitudes
            }
            fn narrow<H: Half>(values: &[Self], halves: &mut [H]) {
                H::$narrow(values, halves);
            }
            fn widen<H: Half>(halves: &[H], values: &mut [Self]) {
                H::$widen(halves, values);
            }
        }
    };
}

hook_float!(f32, u32, of_f32, from_f32_slice, to_f32_slice);
hook_float!(f64, u64, of_f64, from_f64_slice, to_f64_slice);
