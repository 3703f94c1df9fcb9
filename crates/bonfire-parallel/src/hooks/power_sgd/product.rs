//! Products of a row-major matrix and a thin factor, which is stored transposed: column k of a factor
//! of length n is `factor[k * n..][..n]`. Each takes the matrix through the cache once, row by row.
//!
//! # Shapes
//! `matrix` and `residual` (rows, cols), `q` (rank, cols), `p` (rank, rows); none is empty.

use crate::hooks::float::HookFloat;
use crate::hooks::vector::{add, add_scaled, dot, set_scaled, subtract};

/// `matrix += residual`, then `p = matrix * q`
pub(super) fn right<E: HookFloat>(
    rows: usize,
    matrix: &mut [E],
    residual: Option<&[E]>,
    q: &[E],
    p: &mut [E],
) {
    let cols = matrix.len() / rows;
    for (i, row) in matrix.chunks_exact_mut(cols).enumerate() {
        if let Some(residual) = residual {
            add(row, &residual[i * cols..][..cols]);
        }
        for (k, column) in q.chunks_exact(cols).enumerate() {
            p[k * rows + i] = dot(row, column);
        }
    }
}

/// `q = matrix^T * p`
pub(super) fn left<E: HookFloat>(rows: usize, matrix: &[E], p: &[E], q: &mut [E]) {
    let cols = matrix.len() / rows;
    q.fill(E::ZERO);
    for (i, row) in matrix.chunks_exact(cols).enumerate() {
        for (k, column) in q.chunks_exact_mut(cols).enumerate() {
            add_scaled(column, p[k * rows + i], row);
        }
    }
}

/// `residual = matrix - p * q^T`, then `matrix = p * q^T`
pub(super) fn outer<E: HookFloat>(
    rows: usize,
    p: &[E],
    q: &[E],
    matrix: &mut [E],
    mut residual: Option<&mut [E]>,
) {
    let cols = matrix.len() / rows;
    let (first, others) = q.split_at(cols);
    for (i, row) in matrix.chunks_exact_mut(cols).enumerate() {
        let mut residual =
            residual.as_deref_mut().map(|residual| &mut residual[i * cols..][..cols]);
        if let Some(residual) = residual.as_deref_mut() {
            residual.copy_from_slice(row);
        }
        set_scaled(row, p[i], first);
        for (k, column) in others.chunks_exact(cols).enumerate() {
            add_scaled(row, p[(k + 1) * rows + i], column);
        }
        if let Some(residual) = residual {
            subtract(residual, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_definition() {
        let (rows, cols, rank) = (5, 37, 3);
        let noise = |k: usize, seed: usize| ((k * 7919 + seed) % 101) as f64 / 50.0 - 1.0;
        let values = |len: usize, seed| (0..len).map(|k| noise(k, seed)).collect::<Vec<f64>>();
        let (mut matrix, residual) = (values(rows * cols, 1), values(rows * cols, 2));
        let (mut q, mut p) = (values(rank * cols, 3), vec![0.0; rank * rows]);

        let sum: Vec<f64> = matrix.iter().zip(&residual).map(|(a, b)| a + b).collect();
        right(rows, &mut matrix, Some(&residual), &q, &mut p);
        assert_eq!(matrix, sum);
        for (k, i) in (0..rank).flat_map(|k| (0..rows).map(move |i| (k, i))) {
            let expected: f64 = (0..cols).map(|j| sum[i * cols + j] * q[k * cols + j]).sum();
            assert!((p[k * rows + i] - expected).abs() < 1e-12);
        }

        left(rows, &matrix, &p, &mut q);
        for (k, j) in (0..rank).flat_map(|k| (0..cols).map(move |j| (k, j))) {
            let expected: f64 = (0..rows).map(|i| sum[i * cols + j] * p[k * rows + i]).sum();
            assert!((q[k * cols + j] - expected).abs() < 1e-11);
        }

        let mut left_over = vec![0.0; rows * cols];
        outer(rows, &p, &q, &mut matrix, Some(&mut left_over));
        for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
            let at = i * cols + j;
            let expected: f64 = (0..rank).map(|k| p[k * rows + i] * q[k * cols + j]).sum();
            assert!((matrix[at] - expected).abs() < 1e-10);
            assert_eq!(left_over[at], sum[at] - matrix[at]);
        }
    }
}
