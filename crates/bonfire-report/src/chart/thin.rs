//! Few points for many: what a column of pixels can show.

use super::axis::Axis;

/// What a curve has at a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Item {
    /// A point, in pixels.
    Point(f64, f64),
    /// A value without a place on the axis, by its pixel in the other direction, and whether it is one
    /// that lies below (minus infinity, or 0 on a logarithmic axis).
    Lost { x: f64, below: bool },
}

impl Item {
    fn x(self) -> f64 {
        match self {
            Item::Point(x, _) | Item::Lost { x, .. } => x,
        }
    }
}

/// Turns values into places. Where there are more than two a column, only the first and last of the whole
/// series, the extremes of each column and what is lost in it remain.
pub(super) fn items(points: &[(f64, f64)], x_axis: &Axis, y_axis: &Axis) -> Vec<Item> {
    let item = |&(x, y): &(f64, f64)| {
        let x = x_axis.place(x)?;
        let lost = Item::Lost { x, below: y < f64::MIN_POSITIVE };
        Some(y_axis.place(y).map_or(lost, |y| Item::Point(x, y)))
    };
    let mut items: Vec<Item> = points.iter().filter_map(item).collect();
    if !items.is_sorted_by(|one, next| one.x() <= next.x()) {
        items.sort_by(|one, other| one.x().total_cmp(&other.x()));
    }
    let (left, right) = x_axis.pixels;
    // Finer columns could not be told apart, and would make files large.
    let columns = (right - left).abs().clamp(1.0, 750.0);
    if items.len() as f64 <= columns * 2.0 {
        return items;
    }
    let column = |item: &Item| ((item.x() - left) / (right - left) * columns).floor();
    let mut kept = Vec::new();
    kept.extend(items.first().copied());
    for group in items.chunk_by(|one, next| column(one) == column(next)) {
        keep(group, &mut kept);
    }
    kept.extend(items.last().copied());
    kept.dedup();
    kept
}

/// Keeps the extremes of a column, and the first and last value lost in it, in their order.
fn keep(group: &[Item], kept: &mut Vec<Item>) {
    let height = |index: usize| match group[index] {
        Item::Point(_, y) => Some(y),
        Item::Lost { .. } => None,
    };
    let points = || (0..group.len()).filter_map(|index| Some((index, height(index)?)));
    let lost = || (0..group.len()).filter(|index| height(*index).is_none());
    let by_height = |one: &(usize, f64), other: &(usize, f64)| one.1.total_cmp(&other.1);
    let mut indices: Vec<usize> = [
        points().min_by(by_height).map(|(index, _)| index),
        points().max_by(by_height).map(|(index, _)| index),
        lost().next(),
        lost().next_back(),
    ]
    .into_iter()
    .flatten()
    .collect();
    indices.sort_unstable();
    indices.dedup();
    kept.extend(indices.into_iter().map(|index| group[index]));
}

#[cfg(test)]
mod tests {
    use super::super::Scale;
    use super::*;

    fn axes(points: &[(f64, f64)]) -> (Axis, Axis) {
        let x = Axis::around(points.iter().map(|point| point.0), Scale::Linear).on(0.0, 100.0);
        let y = Axis::around(points.iter().map(|point| point.1), Scale::Linear).on(100.0, 0.0);
        (x, y)
    }

    #[test]
    fn spikes_ends_and_lost_values_survive() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|index| (index as f64, 0.0)).collect();
        points[12_345].1 = 1.0;
        points[54_321].1 = f64::NAN;
        points[99_999].1 = 0.5;
        let (x, y) = axes(&points);
        let items = items(&points, &x, &y);
        assert!(items.len() < 220, "{}", items.len());
        assert!(items.iter().any(|item| matches!(item, Item::Point(_, y) if *y == 0.0)));
        assert_eq!(items.iter().filter(|item| matches!(item, Item::Lost { .. })).count(), 1);
        assert_eq!(items.last(), Some(&Item::Point(100.0, 50.0)));
    }

    #[test]
    fn short_series_stay_whole_and_get_into_order() {
        let points = [(2.0, 1.0), (1.0, 0.0), (f64::NAN, 5.0), (1.5, f64::NEG_INFINITY)];
        let (x, y) = axes(&points[..2]);
        let expected =
            [Item::Point(0.0, 100.0), Item::Lost { x: 50.0, below: true }, Item::Point(100.0, 0.0)];
        assert_eq!(items(&points, &x, &y), expected);
    }
}
