//! Series on top of each other.

use super::Series;
use std::collections::BTreeMap;

/// The places that stacked series have in common, and the upper border of each series over them.
pub(super) struct Stack {
    pub(super) xs: Vec<f64>,
    /// One border for each series, from the lowest.
    pub(super) borders: Vec<Vec<f64>>,
}

impl Stack {
    /// Adds the series up over all places that any of them has, at most `columns` of them: neighbours
    /// become one with their means, so that parts of a whole still add up to it.
    pub(super) fn new(series: &[Series], columns: usize) -> Self {
        let mut rows: BTreeMap<Place, Vec<f64>> = BTreeMap::new();
        for (index, one) in series.iter().enumerate() {
            for (x, y) in one.points.iter().filter(|(x, _)| x.is_finite()) {
                let row = rows.entry(Place(*x)).or_insert_with(|| vec![0.0; series.len()]);
                row[index] = if y.is_finite() { y.max(0.0) } else { 0.0 };
            }
        }
        let rows: Vec<(f64, Vec<f64>)> = rows.into_iter().map(|(x, row)| (x.0, row)).collect();
        let size = rows.len().div_ceil(columns.max(2)).max(1);
        let rows: Vec<(f64, Vec<f64>)> = rows.chunks(size).map(mean).collect();
        let xs = rows.iter().map(|(x, _)| *x).collect();
        let border =
            |index: usize| rows.iter().map(|(_, row)| row[..=index].iter().sum()).collect();
        Self { xs, borders: (0..series.len()).map(border).collect() }
    }
}

/// The mean of some rows, at the place of the first.
fn mean(rows: &[(f64, Vec<f64>)]) -> (f64, Vec<f64>) {
    let (x, first) = &rows[0];
    let count = rows.len() as f64;
    let of = |index: usize| rows.iter().map(|(_, row)| row[index] / count).sum();
    (*x, (0..first.len()).map(of).collect())
}

/// A place on the horizontal axis, ordered.
#[derive(PartialEq)]
struct Place(f64);

impl Eq for Place {}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_over_all_places() {
        let one = Series::area("one", vec![(1.0, 0.25), (2.0, 0.5)]);
        let two = Series::area("two", vec![(3.0, 1.0), (1.0, 0.75), (2.0, f64::NAN)]);
        let stack = Stack::new(&[one, two], 100);
        assert_eq!(stack.xs, [1.0, 2.0, 3.0]);
        assert_eq!(stack.borders, [vec![0.25, 0.5, 0.0], vec![1.0, 0.5, 1.0]]);
    }

    #[test]
    fn long_stacks_become_means() {
        let part = |share: f64| (0..1000).map(|x| (f64::from(x), share)).collect();
        let stack =
            Stack::new(&[Series::area("a", part(0.25)), Series::area("b", part(0.75))], 100);
        assert_eq!(stack.xs.len(), 100);
        assert!(stack.borders[1].iter().all(|sum| (sum - 1.0).abs() < 1e-12));
    }
}
