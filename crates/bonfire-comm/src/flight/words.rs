//! Numbers and times as people read them.

use time::OffsetDateTime;

/// Lists ranks: `rank 0`, `ranks 0, 1 and 3`.
pub(super) fn ranks(ranks: &[usize]) -> String {
    let name = |rank: &usize| rank.to_string();
    match ranks {
        [] => "no rank".to_owned(),
        [rank] => format!("rank {rank}"),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(name).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

/// Chooses the form of a verb or pronoun for so many ranks.
pub(super) fn form<'a>(ranks: &[usize], one: &'a str, many: &'a str) -> &'a str {
    if ranks.len() == 1 { one } else { many }
}

/// Tells nanoseconds in the unit that suits them.
pub(super) fn duration(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    match nanoseconds {
        0..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

/// Tells a Unix time in nanoseconds as date and time.
pub(super) fn wall_clock(unix: u64) -> String {
    match OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix)) {
        Ok(time) => format!(
            "{} {:02}:{:02}:{:02}.{:03} UTC",
            time.date(),
            time.hour(),
            time.minute(),
            time.second(),
            time.millisecond()
        ),
        Err(_) => format!("{unix} ns after 1970"),
    }
}

/// Lines up rows of cells under a head, each line behind two spaces. The first
/// `num_numbers` columns are numbers.
pub(super) fn table(head: &[&str], rows: &[Vec<String>], num_numbers: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.len())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let aligned = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < num_numbers { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        format!("  {}", aligned.collect::<Vec<_>>().join("  ").trim_end()) + "\n"
    };
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(head.to_vec())).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_read_well() {
        assert_eq!(ranks(&[3]), "rank 3");
        assert_eq!(ranks(&[0, 1, 3]), "ranks 0, 1 and 3");
        assert_eq!(duration(12_345_678_901), "12.3 s");
        assert_eq!(duration(2_500_000), "2.5 ms");
        assert_eq!(duration(700), "0.7 us");
        assert_eq!(wall_clock(1_700_000_000_123_000_000), "2023-11-14 22:13:20.123 UTC");
        let rows = [vec!["10".to_owned(), "a".to_owned()], vec!["9".to_owned(), String::new()]];
        assert_eq!(table(&["rank", "host"], &rows, 1), "  rank  host\n    10  a\n     9\n");
    }
}
