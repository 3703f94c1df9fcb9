//! Which spans of a lane can be shown in one row.

use super::Span;

/// Gives every span of a lane a row, 0 or more, so that two spans of a row either lie one within
/// the other or do not overlap. Returns the spans by their beginning, the longer first.
///
/// The format has no other spans within a thread, while several reductions may be on their way,
/// each begun before and ended before the next. Viewers draw such spans wrongly or drop them.
pub(super) fn place<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<(usize, &'a Span)> {
    let mut spans: Vec<&Span> = spans.collect();
    spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.duration_ns)));
    let mut rows: Vec<Nesting> = Vec::new();
    let mut placed = Vec::with_capacity(spans.len());
    for span in spans {
        let (start, end) = (i128::from(span.start_ns), end_ns(span));
        let row = rows.iter_mut().position(|row| row.take(start, end)).unwrap_or_else(|| {
            rows.push(Nesting { open: vec![end] });
            rows.len() - 1
        });
        placed.push((row, span));
    }
    placed
}

fn end_ns(span: &Span) -> i128 {
    i128::from(span.start_ns) + i128::from(span.duration_ns)
}

/// The ends of the spans around a point in time, the innermost last. Spans come by their beginning,
/// the longer first.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    open: Vec<i128>,
}

impl Nesting {
    /// Takes a span if it nests: it ends before what is still open at its beginning.
    pub(super) fn take(&mut self, start: i128, end: i128) -> bool {
        while self.open.last().is_some_and(|open| *open <= start) {
            self.open.pop();
        }
        let nests = self.open.last().is_none_or(|open| end <= *open);
        if nests {
            self.open.push(end);
        }
        nests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Lane;

    fn rows(spans: &[(i64, u64)]) -> Vec<usize> {
        let spans: Vec<Span> = spans
            .iter()
            .map(|(start, duration)| Span::new(Lane::Communication, "bucket", *start, *duration))
            .collect();
        place(spans.iter()).into_iter().map(|(row, _)| row).collect()
    }

    #[test]
    fn only_spans_that_cross_need_another_row() {
        assert_eq!(rows(&[(0, 10), (10, 10), (25, 5)]), [0, 0, 0], "one after the other");
        assert_eq!(rows(&[(5, 5), (0, 10), (0, 5), (5, 0)]), [0, 0, 0, 0], "one in the other");
        assert_eq!(rows(&[(0, 10), (5, 10), (12, 10), (15, 3)]), [0, 1, 0, 0]);
        assert_eq!(rows(&[(0, 10), (1, 10), (2, 10), (10, 1)]), [0, 1, 2, 0]);
        assert_eq!(rows(&[(i64::MAX, u64::MAX), (1, u64::MAX), (i64::MIN, u64::MAX)]), [0, 1, 0]);
    }
}
