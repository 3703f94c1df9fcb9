use crate::hooks::float::HookFloat;
use crate::hooks::vector::{add_scaled, divide, dot, largest};

/// Makes the columns of a factor orthonormal, in their order; each is `len` elements of `factor`.
///
/// A column that depends on those before it, or is zero, becomes zero: noise of a random direction
/// would enter the product otherwise. A column with an element that is not finite becomes NaN, and all
/// behind it.
///
/// # Reference
/// Modified Gram-Schmidt, each column twice: Giraud, Langou, Rozloznik, van den Eshof 2005, "Rounding
/// error analysis of the classical Gram-Schmidt orthogonalization process", section 4.
pub(super) fn orthonormalise<E: HookFloat>(factor: &mut [E], len: usize) {
    let mut done = 0;
    while done < factor.len() {
        let (before, rest) = factor.split_at_mut(done);
        normalise_against(before, &mut rest[..len]);
        done += len;
    }
}

fn normalise_against<E: HookFloat>(before: &[E], column: &mut [E]) {
    let size = largest(column);
    if size == E::ZERO {
        return;
    }
    // Squares of very large or small elements would leave the range.
    divide(column, size);
    let norm = dot(column, column).sqrt();
    // Once for the column, and again for the rounding error of the first time.
    for _ in 0..2 {
        for other in before.chunks_exact(column.len()) {
            add_scaled(column, E::ZERO - dot(column, other), other);
        }
    }
    let left = dot(column, column).sqrt();
    // What is left of a dependent column is its rounding error.
    if left <= norm * E::from_f32(32.0) * E::EPSILON {
        column.fill(E::ZERO);
    } else {
        divide(column, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<E: HookFloat>(tolerance: f32) {
        let len = 70;
        let noise = |k: usize| E::from_f64(((k * 7919) % 103) as f64 / 50.0 - 1.0);
        let mut factor: Vec<E> = (0..4 * len).map(noise).collect();
        // The third column depends on the first two but for the range of its values.
        for k in 0..len {
            let sum = factor[k] + factor[len + k];
            factor[2 * len + k] = sum * E::from_f64(1e-15);
            factor[3 * len + k] = factor[3 * len + k] * E::from_f64(1e25);
        }
        orthonormalise(&mut factor, len);
        for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
            let expected = if a == b && a != 2 { 1.0 } else { 0.0 };
            let product = dot(&factor[a * len..][..len], &factor[b * len..][..len]);
            let error = (product - E::from_f64(expected)).abs().to_f32();
            assert!(error < tolerance, "{a} {b}: {error}");
        }
        assert!(factor[2 * len..3 * len].iter().all(|value| *value == E::ZERO));
    }

    #[test]
    fn columns_become_orthonormal_and_dependent_ones_zero() {
        check::<f32>(1e-5);
        check::<f64>(1e-13);
    }

    #[test]
    fn nearly_dependent_columns_are_orthogonal_to_the_last_bit() {
        let len = 70;
        let noise = |k: usize| ((k * 7919) % 103) as f64 / 50.0 - 1.0;
        let mut factor: Vec<f64> = (0..2 * len).map(noise).collect();
        for k in 0..len {
            factor[len + k] = factor[k] + 1e-9 * factor[len + k];
        }
        orthonormalise(&mut factor, len);
        let product = dot(&factor[..len], &factor[len..]);
        assert!(product.abs() < 1e-14, "{product}");
    }

    #[test]
    fn zeros_stay_and_what_is_not_finite_is_kept_visible() {
        let mut factor = vec![0.0f32, 0.0, 3.0, 4.0];
        orthonormalise(&mut factor, 2);
        assert_eq!(factor, [0.0, 0.0, 0.6, 0.8]);
        for odd in [f32::NAN, f32::INFINITY] {
            let mut factor = vec![1.0, odd, 3.0, 4.0];
            orthonormalise(&mut factor, 2);
            assert!(factor.iter().all(|value| value.is_nan()), "{factor:?}");
        }
    }
}
