//! Names of the series, in rows that fit the width.

/// Height of a row.
pub(super) const ROW: f64 = 17.0;
/// Length of the line before a name.
pub(super) const SAMPLE: f64 = 16.0;
/// Most rows; names beyond them are only counted.
const ROWS: usize = 3;
/// Longest name in characters.
const LONGEST: usize = 32;
/// Space between a line and its name, and behind a name.
const GAPS: (f64, f64) = (5.0, 14.0);

/// A name and where its line begins, `row` counted from the top.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// The number of the series; none where names are only counted.
    pub(super) series: Option<usize>,
    pub(super) name: String,
    pub(super) x: f64,
    pub(super) row: usize,
}

impl Entry {
    /// Where the words begin.
    pub(super) fn words_x(&self) -> f64 {
        self.x + if self.series.is_some() { SAMPLE + GAPS.0 } else { 0.0 }
    }
}

/// Lays out the names of two series or more.
pub(super) fn entries(names: &[&str], left: f64, right: f64, character: f64) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    if names.len() < 2 {
        return entries;
    }
    let (mut x, mut row) = (left, 0);
    for (index, name) in names.iter().enumerate() {
        let name = shortened(name);
        let width = SAMPLE + GAPS.0 + name.chars().count() as f64 * character + GAPS.1;
        if x > left && x + width - GAPS.1 > right {
            (x, row) = (left, row + 1);
        }
        if row == ROWS {
            // The last name makes way for how many there are more.
            let last = entries.pop().map_or(left, |last| last.x);
            let name = format!("and {} more", names.len() - index + 1);
            entries.push(Entry { series: None, name, x: last, row: ROWS - 1 });
            break;
        }
        entries.push(Entry { series: Some(index), name, x, row });
        x += width;
    }
    entries
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= LONGEST {
        return name.to_string();
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fill_rows_and_are_counted_beyond_them() {
        assert!(entries(&["alone"], 0.0, 100.0, 6.0).is_empty());
        let two = entries(&["train", "valid"], 10.0, 300.0, 6.0);
        assert_eq!((two[0].x, two[0].row, two[1].row), (10.0, 0, 0));
        assert_eq!(two[1].x, 10.0 + 16.0 + 5.0 + 30.0 + 14.0);
        let names: Vec<String> = (0..64).map(|rank| format!("rank {rank}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let many = entries(&names, 0.0, 400.0, 6.0);
        let named = many.iter().filter(|entry| entry.series.is_some()).count();
        assert_eq!(many.last().unwrap().name, format!("and {} more", 64 - named));
        assert_eq!(many.last().unwrap().row, 2);
        let long = "x".repeat(100);
        assert_eq!(entries(&[&long, "b"], 0.0, 50.0, 6.0)[0].name.chars().count(), 32);
    }
}
