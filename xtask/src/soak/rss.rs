//! `cargo xtask soak rss`: a training loop does not grow.

use crate::cargo::build_release;
use crate::train_loop::{arguments, figures};
use crate::{Result, record};
use serde_json::Value;

/// How long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Optimizer steps, of which the first tenth is the start.
    #[arg(long, default_value_t = 10_000)]
    steps: u64,
}

/// Readings of a run; growth counts from the first to the last.
const READINGS: u64 = 10;
/// Most by which a rank may grow, in bytes.
const GROWTH: i64 = 2_000_000;

/// Loops, as the program calls them, and transports.
const RUNS: [(&str, &str, &str); 4] = [
    ("DataParallel, shared memory", "", "auto"),
    ("DataParallel, TCP", "", "tcp"),
    ("Trainer, shared memory", "--trainer", "auto"),
    ("Trainer, TCP", "--trainer", "tcp"),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.steps < READINGS {
        return Err(format!("--steps must be at least {READINGS}").into());
    }
    let every = args.steps / READINGS;
    let steps = every * READINGS;
    let program = build_release()?.train_loop;
    let mut text = format!(
        "MLP 784-256-10, SGD with momentum, batches of 64 a rank, 2 ranks, {steps} steps. Resident memory in MB \
         after every {every} steps; between the first and the last reading it may grow by less than {} MB.\n\n\
         | loop | rank | readings | growth, kB | |\n|---|---|---|---|---|\n",
        GROWTH / 1_000_000
    );
    let mut failures = 0;
    for (name, loop_args, transport) in RUNS {
        let words = format!("growth --ranks 2 --steps {steps} --every {every} {loop_args}");
        let printed = figures(&program, transport, &arguments(&words))?;
        for (rank, readings) in ranks(&printed)?.iter().enumerate() {
            let growth = growth(readings)?;
            let verdict = if growth < GROWTH { "reached" } else { "missed" };
            failures += usize::from(growth >= GROWTH);
            let readings: Vec<String> =
                readings.iter().map(|bytes| format!("{:.1}", *bytes as f64 / 1e6)).collect();
            let row = format!(
                "| {name} | {rank} | {} | {:.0} | {verdict} |\n",
                readings.join(" "),
                growth as f64 / 1e3
            );
            print!("{row}");
            text.push_str(&row);
        }
    }
    record::write("soak-rss", &text)?;
    match failures {
        0 => Ok(()),
        failures => Err(format!("{failures} ranks grew by 2 MB or more").into()),
    }
}

/// The readings of each rank.
fn ranks(printed: &Value) -> Result<Vec<Vec<i64>>> {
    let ranks: Vec<Vec<i64>> = serde_json::from_value(printed.clone())?;
    match ranks.iter().all(|readings| readings.len() as u64 == READINGS) {
        true => Ok(ranks),
        false => Err(format!("{READINGS} readings of each rank expected in {printed}").into()),
    }
}

fn growth(readings: &[i64]) -> Result<i64> {
    match (readings.first(), readings.last()) {
        (Some(first), Some(last)) => Ok(last - first),
        _ => Err("nothing was measured".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_from_the_first_reading_to_the_last() {
        assert_eq!(growth(&[50, 70, 45]).unwrap(), -5);
        assert!(growth(&[]).is_err());
        assert!(ranks(&serde_json::json!([[1, 2], [3, 4]])).is_err(), "two readings are too few");
    }
}
