use crate::bucket::Segment;
use std::ops::Range;

/// Which parameters of a bucket are compressed, and where their factors lie.
pub(super) struct Plan {
    pub(super) matrices: Vec<Matrix>,
    /// The parameters of `matrices`, one behind the other.
    pub(super) compressed: Vec<Segment>,
    /// Runs of elements that are not compressed.
    plain: Vec<Range<usize>>,
    pub(super) num_plain: usize,
    pub(super) num_p: usize,
    pub(super) num_q: usize,
}

/// A parameter that is compressed, as a matrix of its first dimension and all others.
pub(super) struct Matrix {
    pub(super) path: String,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Columns of the factors.
    pub(super) rank: usize,
    /// Its elements in the bucket.
    pub(super) range: Range<usize>,
    /// Its elements among those of all matrices.
    pub(super) residual: Range<usize>,
    /// P among all of the bucket, transposed: (rank, rows).
    pub(super) p: Range<usize>,
    /// Q likewise: (rank, cols).
    pub(super) q: Range<usize>,
}

impl Plan {
    pub(super) fn new(segments: &[Segment], rank: usize, min_rate: f64) -> Self {
        let mut plan = Self {
            matrices: Vec::new(),
            compressed: Vec::new(),
            plain: Vec::new(),
            num_plain: 0,
            num_p: 0,
            num_q: 0,
        };
        let mut num_compressed = 0;
        for segment in segments {
            let range = segment.range.clone();
            let Some((rows, cols, rank)) = factors(&segment.shape, rank, min_rate) else {
                plan.num_plain += range.len();
                plan.plain.push(range);
                continue;
            };
            let residual = extend(&mut num_compressed, range.len());
            plan.compressed.push(Segment { range: residual.clone(), ..segment.clone() });
            let (p, q) =
                (extend(&mut plan.num_p, rows * rank), extend(&mut plan.num_q, cols * rank));
            let path = segment.path.clone();
            plan.matrices.push(Matrix { path, rows, cols, rank, range, residual, p, q });
        }
        plan
    }

    /// Copies what is not compressed out of the bucket.
    pub(super) fn gather_plain<E: Copy>(&self, bucket: &[E], mut plain: &mut [E]) {
        for range in &self.plain {
            let part = plain.split_off_mut(..range.len()).unwrap_or_default();
            part.copy_from_slice(&bucket[range.clone()]);
        }
    }

    /// Copies it back.
    pub(super) fn scatter_plain<E: Copy>(&self, mut plain: &[E], bucket: &mut [E]) {
        for range in &self.plain {
            let part = plain.split_off(..range.len()).unwrap_or_default();
            bucket[range.clone()].copy_from_slice(part);
        }
    }
}

fn extend(len: &mut usize, by: usize) -> Range<usize> {
    let start = *len;
    *len += by;
    start..*len
}

/// Rows, columns and columns of the factors of a parameter that is worth compressing.
fn factors(shape: &[usize], rank: usize, min_rate: f64) -> Option<(usize, usize, usize)> {
    let (&rows, rest) = shape.split_first()?;
    let cols = rest.iter().product::<usize>();
    let rank = rank.min(rows).min(cols);
    let compressed = ((rows + cols) * rank) as f64;
    (!rest.is_empty() && compressed * min_rate < (rows * cols) as f64).then_some((rows, cols, rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_compressed_where_it_pays_by_more_than_the_rate() {
        // 2 (4 + 4) = 16 does not pay by a factor of more than 2; 2 (5 + 4) < 20 does.
        assert_eq!(factors(&[4, 4], 1, 2.0), None);
        assert_eq!(factors(&[5, 4], 1, 2.0), Some((5, 4, 1)));
        assert_eq!(factors(&[5, 4], 1, 2.3), None);
        assert_eq!(factors(&[64, 32, 3, 3], 4, 2.0), Some((64, 288, 4)));
        assert_eq!(factors(&[2, 1000], 8, 0.5), Some((2, 1000, 2)));
        assert_eq!(factors(&[1000], 1, 1e-9), None);
        assert_eq!(factors(&[], 1, 1e-9), None);
        assert_eq!(factors(&[0, 7], 1, 1e-9), None);
    }
}
