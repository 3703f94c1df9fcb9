//! Charts of what each rank did.

use super::figures::{over_steps, smoothed};
use crate::chart::{Chart, Series};
use crate::history::{RankRow, Row};
use std::collections::BTreeMap;

/// Most ranks that have curves of their own: more could not be told apart.
const SHOWN: usize = 8;

/// Images per second of each rank; one rank alone has the same as all.
pub(super) fn throughput(rows: &[Row]) -> Chart {
    let ranks = curves(rows, |rank| rank.images_per_s);
    let series = if ranks.len() < 2 { Vec::new() } else { named(ranks) };
    Chart { from_zero: true, ..over_steps("Throughput of each rank", "images/s", series) }
}

/// The same without the time in which a rank waits for others: the one that all wait for is the lowest.
pub(super) fn busy(rows: &[Row]) -> Chart {
    let series = named(curves(rows, |rank| rank.busy_images_per_s));
    let title = "Throughput of each rank while busy (the lowest holds up the others)";
    let title = if series.len() < 2 { "Throughput while busy" } else { title };
    Chart { from_zero: true, ..over_steps(title, "images/s", series) }
}

/// Where the time goes, as the mean over the ranks.
pub(super) fn time_shares(rows: &[Row]) -> Chart {
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.ranks.is_empty()).collect();
    let part = |name: &str, share: fn(&RankRow) -> f64| {
        let point = |row: &&Row| (row.step as f64, 100.0 * mean(&row.ranks, share));
        Series::area(name, rows.iter().map(point).collect())
    };
    let series = vec![
        part("data", |rank| rank.data),
        part("forward", |rank| rank.forward),
        part("backward", |rank| rank.backward),
        part("communication", |rank| rank.comm_wait),
        part("optimizer", |rank| rank.optimizer),
        part("other", other),
    ];
    Chart { stacked: true, ..over_steps("Where the time goes", "% of time", series) }
}

/// How busy the devices are, where that is known.
pub(super) fn devices(rows: &[Row]) -> Chart {
    let known = |row: &Row| {
        let ranks = row.ranks.iter().filter(|rank| rank.device_utilization.is_some()).cloned();
        Row { ranks: ranks.collect(), ..row.clone() }
    };
    let rows: Vec<Row> = rows.iter().map(known).collect();
    let percent = |rank: &RankRow| 100.0 * rank.device_utilization.unwrap_or(0.0);
    let series = named(curves(&rows, percent));
    Chart { from_zero: true, ..over_steps("Device utilisation", "% of time", series) }
}

/// Processor cores that each rank's process keeps busy.
pub(super) fn cores(rows: &[Row]) -> Chart {
    let series = named(curves(rows, |rank| rank.cpu_cores));
    Chart { from_zero: true, ..over_steps("Processor cores kept busy", "cores", series) }
}

/// What the measured parts leave.
fn other(rank: &RankRow) -> f64 {
    let measured = rank.data + rank.forward + rank.backward + rank.comm_wait + rank.optimizer;
    (1.0 - measured).max(0.0)
}

fn mean(ranks: &[RankRow], share: fn(&RankRow) -> f64) -> f64 {
    ranks.iter().map(share).sum::<f64>() / ranks.len() as f64
}

/// The curve of each rank.
fn curves(rows: &[Row], value: fn(&RankRow) -> f64) -> BTreeMap<usize, Vec<(f64, f64)>> {
    let mut curves: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        for rank in &row.ranks {
            curves.entry(rank.rank).or_default().push((row.step as f64, value(rank)));
        }
    }
    curves
}

/// Series by rank. Of many ranks those that are slowest on average are shown, and the fastest.
fn named(curves: BTreeMap<usize, Vec<(f64, f64)>>) -> Vec<Series> {
    let series = |(rank, points): (usize, Vec<(f64, f64)>)| {
        smoothed(Series::line(format!("rank {rank}"), points))
    };
    if curves.len() <= SHOWN {
        return curves.into_iter().map(series).collect();
    }
    let mut ranks: Vec<(usize, Vec<(f64, f64)>)> = curves.into_iter().collect();
    ranks.sort_by(|one, other| average(&one.1).total_cmp(&average(&other.1)));
    let fastest = ranks.pop();
    ranks.truncate(SHOWN - 1);
    let mut shown: Vec<Series> = ranks.into_iter().chain(fastest).map(series).collect();
    if let [slowest, .., fastest] = &mut shown[..] {
        slowest.name.push_str(" (slowest)");
        fastest.name.push_str(" (fastest)");
    }
    shown
}

fn average(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(_, value)| value).sum::<f64>() / points.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Phase;

    fn row(step: u64, ranks: usize) -> Row {
        let rank = |rank: usize| RankRow {
            rank,
            images_per_s: 100.0,
            busy_images_per_s: if rank == 5 { 80.0 } else { 120.0 + rank as f64 },
            data: 0.1,
            forward: 0.25,
            backward: 0.5,
            comm_wait: 0.05,
            optimizer: 0.05,
            cpu_cores: 1.5,
            device_utilization: rank.is_multiple_of(2).then_some(0.75),
            peak_memory_bytes: 1 << 30,
        };
        Row {
            phase: Phase::Train,
            epoch: 0,
            step,
            time_s: 0.0,
            learning_rate: None,
            images_per_s: None,
            figures: Vec::new(),
            ranks: (0..ranks).map(rank).collect(),
        }
    }

    #[test]
    fn of_many_ranks_the_slowest_and_the_fastest_are_shown() {
        let chart = busy(&[row(1, 64), row(2, 64)]);
        let names: Vec<&str> = chart.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names.len(), 8);
        assert_eq!((names[0], names[7]), ("rank 5 (slowest)", "rank 63 (fastest)"));
        assert_eq!(busy(&[row(1, 3)]).series.len(), 3);
    }

    #[test]
    fn the_parts_of_the_time_are_a_whole() {
        let chart = time_shares(&[row(1, 2), row(2, 0), row(3, 2)]);
        let sum: f64 = chart.series.iter().map(|part| part.points[1].1).sum();
        assert!((sum - 100.0).abs() < 1e-9);
        assert_eq!(chart.series[0].points.len(), 2, "a row without ranks has none");
        assert!(time_shares(&[row(1, 0)]).series.is_empty());
        assert!(throughput(&[row(1, 1)]).series.is_empty());
    }

    #[test]
    fn devices_that_tell_nothing_have_no_curve() {
        let chart = devices(&[row(1, 4)]);
        let names: Vec<&str> = chart.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["rank 0", "rank 2"]);
        assert_eq!(chart.series[0].points, [(1.0, 75.0)]);
        assert_eq!(cores(&[row(1, 4)]).series.len(), 4);
    }
}
