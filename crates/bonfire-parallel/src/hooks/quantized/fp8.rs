use super::Codec;

/// 8-bit floating point e4m3: a sign, four bits of exponent with bias 7, three of mantissa; no
/// infinities, largest number 448, smallest 2^-9; code 0x7f is NaN.
///
/// # Reference
/// Micikevicius et al. 2022, arXiv:2209.05433, table 1; PyTorch's `float8_e4m3fn`, which does not
/// saturate.
pub(in crate::hooks) struct Fp8;

/// Bits of an f32's mantissa that e4m3 lacks.
const CUT: u32 = 20;
/// Difference of the two biases, in e4m3's place.
const REBIAS: u32 = (127 - 7) << 3;
/// The smallest normal number.
const MIN_NORMAL: f32 = 1.0 / 64.0;
/// Its last bit weighs what a subnormal code weighs, 2^-9.
const ROUND: f32 = 16_384.0;
const NAN_CODE: u8 = 0x7f;

impl Codec for Fp8 {
    const NAME: &'static str = "fp8";
    const MAX: f32 = 448.0;

    // Both cases are computed and one is chosen, so that loops become vector code.
    #[inline(always)]
    fn encode(value: f32) -> u8 {
        let size = value.abs();
        let size = if size > Self::MAX { Self::MAX } else { size };
        let bits = size.to_bits();
        let even = (1 << (CUT - 1)) - 1 + ((bits >> CUT) & 1);
        let normal = (bits.wrapping_add(even) >> CUT).wrapping_sub(REBIAS);
        let subnormal = (size + ROUND).to_bits().wrapping_sub(ROUND.to_bits());
        let code = if size < MIN_NORMAL { subnormal } else { normal };
        let code = if value.is_nan() { u32::from(NAN_CODE) } else { code };
        ((value.to_bits() >> 24) & 0x80 | code) as u8
    }

    #[inline(always)]
    fn decode(code: u8) -> f32 {
        let size = u32::from(code & 0x7f);
        let normal = f32::from_bits((size + REBIAS) << CUT);
        // Signed, as vectors convert only such integers.
        let subnormal = size.cast_signed() as f32 / 512.0;
        let value = if size < 8 { subnormal } else { normal };
        let value = if size == u32::from(NAN_CODE) { f32::NAN } else { value };
        f32::from_bits(value.to_bits() | u32::from(code & 0x80) << 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a code, by the definition of the format.
    fn by_definition(code: u8) -> f64 {
        let (sign, exponent) = (f64::from(code >> 7), i32::from(code >> 3 & 15));
        let mantissa = f64::from(code & 7) / 8.0;
        let size = match (exponent, code & 7) {
            (15, 7) => f64::NAN,
            (0, _) => mantissa * 2f64.powi(-6),
            _ => (1.0 + mantissa) * 2f64.powi(exponent - 7),
        };
        size * (1.0 - 2.0 * sign)
    }

    /// The nearest of all codes of the value's sign, of two the even one.
    fn nearest(value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let distance = |code: u8| (by_definition(code) - f64::from(value)).abs();
        let better = |a: u8, b: u8| {
            let closer = distance(b) < distance(a);
            let tie_to_even = distance(b) == distance(a) && b.is_multiple_of(2);
            if closer || tie_to_even { b } else { a }
        };
        (0..NAN_CODE).map(|code| sign | code).reduce(better).unwrap()
    }

    #[test]
    fn every_code_means_what_the_format_says_and_comes_back() {
        for code in 0..=u8::MAX {
            let (value, expected) = (Fp8::decode(code), by_definition(code));
            if expected.is_nan() {
                assert!(value.is_nan() && Fp8::encode(value) & 0x7f == NAN_CODE);
            } else {
                assert_eq!(f64::from(value).to_bits(), expected.to_bits(), "{code:#x}");
                assert_eq!(Fp8::encode(value), code);
            }
        }
    }

    #[test]
    fn values_go_to_the_nearest_code_and_ties_to_the_even_one() {
        for code in 0..0x7e {
            let (low, high) = (Fp8::decode(code), Fp8::decode(code + 1));
            let middle = (low + high) / 2.0;
            for value in [low, low.next_up(), middle.next_down(), middle, middle.next_up()] {
                for value in [value, -value] {
                    assert_eq!(Fp8::encode(value), nearest(value), "{value}");
                }
            }
        }
        // Exponents and mantissas in small steps, from far below the smallest code to beyond the largest.
        for bits in (0x3500_0000u32..0x4480_0000).step_by(4099) {
            let value = f32::from_bits(bits);
            assert_eq!(Fp8::encode(value), nearest(value), "{value}");
        }
    }

    #[test]
    fn what_is_too_large_becomes_the_largest() {
        for value in [448.0, 460.0, 470.0, 1e9, f32::INFINITY] {
            assert_eq!((Fp8::encode(value), Fp8::encode(-value)), (0x7e, 0xfe));
        }
    }
}
