//! Element-wise loops, compiled for the widest vectors that the processor has.
//!
//! The loops are plain Rust that the compiler turns into vector code; they exist once for the target's
//! baseline and once for AVX2 with F16C, and are chosen when they run.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    // Asked once; the answer is kept by the standard library.
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

/// `target = f(target, source)`, element by element.
pub(crate) fn fold<T: Copy>(target: &mut [T], source: &[T], f: impl Fn(T, T) -> T) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { fold_avx2(target, source, f) };
    }
    fold_plain(target, source, f);
}

#[inline(always)]
fn fold_plain<T: Copy>(target: &mut [T], source: &[T], f: impl Fn(T, T) -> T) {
    for (target, source) in target.iter_mut().zip(source) {
        *target = f(*target, *source);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn fold_avx2<T: Copy>(target: &mut [T], source: &[T], f: impl Fn(T, T) -> T) {
    fold_plain(target, source, f);
}

/// `target = f(source)`, element by element.
fn map<T, U: Copy>(target: &mut [T], source: &[U], f: impl Fn(U) -> T) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { map_avx2(target, source, f) };
    }
    map_plain(target, source, f);
}

#[inline(always)]
fn map_plain<T, U: Copy>(target: &mut [T], source: &[U], f: impl Fn(U) -> T) {
    for (target, source) in target.iter_mut().zip(source) {
        *target = f(*source);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn map_avx2<T, U: Copy>(target: &mut [T], source: &[U], f: impl Fn(U) -> T) {
    map_plain(target, source, f);
}

/// A 16-bit type whose elements are combined in `f32` and rounded to the nearest, ties to even.
pub(crate) trait Half: Copy {
    /// `target = f(target, source)`, element by element.
    fn fold(target: &mut [Self], source: &[Self], f: impl Fn(f32, f32) -> f32);
    /// Converts to `f32`.
    fn widen(source: &[Self], target: &mut [f32]);
    /// Converts from `f32`.
    fn narrow(source: &[f32], target: &mut [Self]);
}

impl Half for bf16 {
    fn widen(source: &[Self], target: &mut [f32]) {
        source.convert_to_f32_slice(target);
    }

    fn narrow(source: &[f32], target: &mut [Self]) {
        map(target, source, narrow);
    }

    fn fold(target: &mut [Self], source: &[Self], f: impl Fn(f32, f32) -> f32) {
        fold(target, source, |target, source| {
            let wide = |value: Self| f32::from_bits(u32::from(value.to_bits()) << 16);
            narrow(f(wide(target), wide(source)))
        });
    }
}

/// `bf16::from_f32` without a branch, which would keep the loop from becoming vector code.
#[inline(always)]
fn narrow(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN whose payload lies in the lower half must not become an infinity.
    let quiet = (bits >> 16) | 0x40;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    bf16::from_bits(if is_nan { quiet } else { rounded } as u16)
}

impl Half for f16 {
    fn widen(source: &[Self], target: &mut [f32]) {
        source.convert_to_f32_slice(target);
    }

    fn narrow(source: &[f32], target: &mut [Self]) {
        target.convert_from_f32_slice(source);
    }

    fn fold(target: &mut [Self], source: &[Self], f: impl Fn(f32, f32) -> f32) {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            // SAFETY: the processor has what the function was compiled for.
            return unsafe { fold_f16_avx2(target, source, f) };
        }
        fold_f16_plain(target, source, f);
    }
}

/// Elements converted at a time: three arrays of this length stay in the L1 cache.
const BLOCK: usize = 512;

fn fold_f16_plain(target: &mut [f16], source: &[f16], f: impl Fn(f32, f32) -> f32) {
    let (mut left, mut right) = ([0f32; BLOCK], [0f32; BLOCK]);
    for (target, source) in target.chunks_mut(BLOCK).zip(source.chunks(BLOCK)) {
        let (left, right) = (&mut left[..target.len()], &mut right[..target.len()]);
        target.convert_to_f32_slice(left);
        source.convert_to_f32_slice(right);
        fold_plain(left, right, &f);
        target.convert_from_f32_slice(left);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn fold_f16_avx2(target: &mut [f16], source: &[f16], f: impl Fn(f32, f32) -> f32) {
    use std::arch::x86_64::{
        __m128i, __m256, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph,
    };
    use std::mem::transmute;

    let (targets, target_rest) = target.as_chunks_mut::<8>();
    let (sources, source_rest) = source.as_chunks::<8>();
    for (target, source) in targets.iter_mut().zip(sources) {
        // SAFETY: both sides are 16 bytes of plain numbers.
        let wide =
            |half: [f16; 8]| _mm256_cvtph_ps(unsafe { transmute::<[f16; 8], __m128i>(half) });
        // SAFETY: both sides are 32 bytes of plain numbers.
        let floats = |wide: __m256| unsafe { transmute::<__m256, [f32; 8]>(wide) };
        let (mut left, right) = (floats(wide(*target)), floats(wide(*source)));
        fold_plain(&mut left, &right, &f);
        // SAFETY: as above.
        *target = unsafe {
            let wide = transmute::<[f32; 8], __m256>(left);
            transmute::<__m128i, [f16; 8]>(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide))
        };
    }
    fold_f16_plain(target_rest, source_rest, f);
}
