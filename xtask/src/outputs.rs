//! `cargo xtask bench-outputs`: what a run pays for telling what it does.

use crate::bench::spread;
use crate::cargo::{build_release, command, output};
use crate::{Result, record};
use std::path::Path;

/// How long to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; every round measures every loop once.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds that each loop is measured in a round.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

/// The loops, the same for each network.
const LOOPS: [(&str, &[&str]); 6] = [
    ("hand-written Burn loop", &["burn"]),
    ("Trainer", &["trainer"]),
    ("Trainer with all outputs", &["trainer", "--outputs"]),
    ("Trainer with all outputs, every step profiled", &["trainer", "--outputs", "--profile"]),
    ("2 ranks with all outputs", &["trainer", "--outputs", "--ranks", "2"]),
    ("2 ranks, every step profiled", &["trainer", "--outputs", "--profile", "--ranks", "2"]),
];
const BURN: usize = 0;
const BARE: usize = 1;
const OUTPUTS: usize = 2;
const PROFILED: usize = 3;
const TWO_RANKS: usize = 4;
const TWO_PROFILED: usize = 5;

/// A network, and the least share of the hand-written loop's speed that all outputs have to leave.
const NETWORKS: [(&str, &str, f64); 2] = [("MLP", "mlp", 0.97), ("CNN", "cnn", 0.98)];
/// The least share of the speed that a profile has to leave.
const WHILE_PROFILED: f64 = 0.97;

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    let programs = build_release()?;
    let mut text = format!(
        "MLP 784-256-10 and LeNet (16, 32 channels) on 28x28 images, SGD, batches of 64 a rank, \
         RAYON_NUM_THREADS=1, the same loader on the training thread; loss and accuracy are read every 50 steps. \
         *All outputs*: progress, metrics.csv, metrics.jsonl, event files, the report; checkpoints have a bench \
         of their own. Median of {} rounds of {} s, in turns; ratios are medians of the rounds' own.\n\n\
         | network | loop | images/s | lowest | highest |\n|---|---|---|---|---|\n",
        args.rounds, args.seconds
    );
    let mut goals = String::from("\n| figure | median | goal | |\n|---|---|---|---|\n");
    for (name, network, least) in NETWORKS {
        let figures = measure(&programs.train_loop, network, args)?;
        for ((title, _), speeds) in LOOPS.iter().zip(&figures) {
            let (low, middle, high) = spread(speeds)?;
            text.push_str(&format!("| {name} | {title} | {middle:.0} | {low:.0} | {high:.0} |\n"));
        }
        for (title, above, below, goal) in [
            ("Trainer / hand-written", BARE, BURN, None),
            ("all outputs / hand-written", OUTPUTS, BURN, Some(least)),
            ("profiled / not profiled", PROFILED, OUTPUTS, Some(WHILE_PROFILED)),
            ("2 ranks, profiled / not profiled", TWO_PROFILED, TWO_RANKS, Some(WHILE_PROFILED)),
        ] {
            let rounds = figures[above].iter().zip(&figures[below]);
            let ratios: Vec<f64> = rounds.map(|(above, below)| above / below).collect();
            let (_, ratio, _) = spread(&ratios)?;
            let (goal, verdict) = match goal {
                Some(goal) if ratio >= goal => (format!("at least {goal}"), "reached"),
                Some(goal) => (format!("at least {goal}"), "missed"),
                None => (String::new(), ""),
            };
            goals.push_str(&format!("| {name}: {title} | {ratio:.3} | {goal} | {verdict} |\n"));
        }
    }
    text.push_str(&goals);
    print!("\n{text}");
    if args.record {
        record::write("outputs", &text)?;
    }
    Ok(())
}

/// Images per second by loop and round, in turns, so that a slow minute of the machine hits all of them.
fn measure(program: &Path, network: &str, args: &Args) -> Result<[Vec<f64>; LOOPS.len()]> {
    let mut figures: [Vec<f64>; LOOPS.len()] = Default::default();
    for round in 0..args.rounds {
        for turn in 0..LOOPS.len() {
            let which = (round + turn) % LOOPS.len();
            let (title, mode) = LOOPS[which];
            let printed = output(
                command(program)
                    .args(mode)
                    .args(["--network", network, "--seconds", &args.seconds.to_string()])
                    .env("RAYON_NUM_THREADS", "1"),
            )?;
            let figure = printed.trim();
            let figure: f64 =
                figure.parse().map_err(|_| format!("train_loop {mode:?} printed {figure:?}"))?;
            println!("{network}, round {}: {title:<48}{figure:>9.0} images/s", round + 1);
            figures[which].push(figure);
        }
    }
    Ok(figures)
}
