//! Loops over vectors, written with independent lanes so that they become vector code although the
//! order of floating-point additions is fixed.

use super::float::HookFloat;

const LANES: usize = 16;

/// The largest absolute value; NaN if any value is not finite; 0 of nothing.
pub(super) fn largest<E: HookFloat>(values: &[E]) -> E {
    let (mut top, mut poison) = ([E::ZERO; LANES], [E::ZERO; LANES]);
    let mut see = |lane: usize, value: E| {
        let size = value.abs();
        top[lane] = if size > top[lane] { size } else { top[lane] };
        // 0 of a number, NaN of everything else, which the comparison above may overlook.
        poison[lane] += value * E::ZERO;
    };
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in chunk.iter().enumerate() {
            see(lane, *value);
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        see(lane, *value);
    }
    let poison = poison.into_iter().fold(E::ZERO, |a, b| a + b);
    top.into_iter().fold(E::ZERO, |a, b| if b > a { b } else { a }) + poison
}

/// The inner product.
pub(super) fn dot<E: HookFloat>(a: &[E], b: &[E]) -> E {
    let mut sums = [E::ZERO; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[lane] += *a * *b;
    }
    sums.into_iter().fold(E::ZERO, |a, b| a + b)
}

/// `target += source`
pub(super) fn add<E: HookFloat>(target: &mut [E], source: &[E]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target += *source;
    }
}

/// `target += factor * source`
pub(super) fn add_scaled<E: HookFloat>(target: &mut [E], factor: E, source: &[E]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target += factor * *source;
    }
}

/// `target = factor * source`
pub(super) fn set_scaled<E: HookFloat>(target: &mut [E], factor: E, source: &[E]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target = factor * *source;
    }
}

/// `values /= divisor`
pub(super) fn divide<E: HookFloat>(values: &mut [E], divisor: E) {
    values.iter_mut().for_each(|value| *value = *value / divisor);
}

/// `target -= source`
pub(super) fn subtract<E: HookFloat>(target: &mut [E], source: &[E]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target -= *source;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_and_what_is_not_finite_is_never_overlooked() {
        let mut values: Vec<f32> = (0..53).map(|k| (k as f32 * 0.7).sin()).collect();
        values[40] = -3.0;
        assert_eq!(largest(&values), 3.0);
        assert_eq!(largest::<f64>(&[]), 0.0);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..values.len() {
                let mut values = values.clone();
                values[at] = odd;
                assert!(largest(&values).is_nan(), "{odd} at {at}");
            }
        }
    }
}
