//! `cargo xtask bench`: what data parallelism costs and gains, and how fast a run starts.

use crate::bonfire::Train;
use crate::cargo::{Programs, build_release, command, output};
use crate::{Result, record};
use std::path::{Path, PathBuf};

/// How long to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; every round measures every loop once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds that each loop is measured in a round.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Threads of each rank that load batches ahead.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

/// A loop: what it is called, how it is started, and how its ranks talk.
struct Loop {
    name: &'static str,
    mode: &'static [&'static str],
    transport: &'static str,
}

const LOOPS: [Loop; 4] = [
    Loop { name: "hand-written Burn loop, 1 process", mode: &["burn"], transport: "auto" },
    Loop { name: "Trainer, 1 rank", mode: &["trainer"], transport: "auto" },
    Loop {
        name: "Trainer, 2 ranks of 1 thread, TCP",
        mode: &["trainer", "--ranks", "2"],
        transport: "tcp",
    },
    Loop {
        name: "Trainer, 2 ranks of 1 thread, shared memory",
        mode: &["trainer", "--ranks", "2"],
        transport: "auto",
    },
];
const BURN: usize = 0;
const ONE_RANK: usize = 1;
const OVER_TCP: usize = 2;
const OVER_SHARED_MEMORY: usize = 3;

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    let programs = build_release()?;
    let figures = Figures::measure(&programs, args)?;
    let text = figures.report(args)?;
    print!("\n{text}");
    if args.record {
        record::write("bench", &text)?;
    }
    Ok(())
}

struct Figures {
    /// Images per second by loop and round.
    images_per_s: [Vec<f64>; LOOPS.len()],
    seconds_to_first_step: Vec<f64>,
}

impl Figures {
    /// Measures the loops in turns, so that a slow minute of the machine hits all of them.
    fn measure(programs: &Programs, args: &Args) -> Result<Self> {
        let mut images_per_s: [Vec<f64>; LOOPS.len()] = Default::default();
        for round in 0..args.rounds {
            for turn in 0..LOOPS.len() {
                let which = (round + turn) % LOOPS.len();
                let figure = time_loop(&programs.train_loop, &LOOPS[which], args)?;
                println!("round {}: {:<44}{figure:>9.0} images/s", round + 1, LOOPS[which].name);
                images_per_s[which].push(figure);
            }
        }
        let seconds_to_first_step = time_starts(&programs.bonfire, args.rounds)?;
        Ok(Self { images_per_s, seconds_to_first_step })
    }

    /// The figures as a Markdown table, beside their goals.
    fn report(&self, args: &Args) -> Result<String> {
        let Args { rounds, seconds, workers, .. } = args;
        let mut text = format!(
            "MLP 784-256-10, SGD, batches of 64 a rank; RAYON_NUM_THREADS=1, {workers} loader \
             threads; median of {rounds} rounds of {seconds} s, in turns.\n\n\
             | loop | images/s (all ranks) | lowest | highest |\n|---|---|---|---|\n"
        );
        for (Loop { name, .. }, figures) in LOOPS.iter().zip(&self.images_per_s) {
            let (low, middle, high) = spread(figures)?;
            text.push_str(&format!("| {name} | {middle:.0} | {low:.0} | {high:.0} |\n"));
        }
        let at_least = |value: f64, goal: f64| (value >= goal, format!("at least {goal}"));
        let overhead = self.ratio(ONE_RANK, BURN)?;
        let over_tcp = self.ratio(OVER_TCP, ONE_RANK)?;
        let over_memory = self.ratio(OVER_SHARED_MEMORY, ONE_RANK)?;
        let (_, start, _) = spread(&self.seconds_to_first_step)?;
        let rows = [
            ("1 rank / hand-written", overhead, at_least(overhead, 0.97)),
            ("2 ranks / 1 rank, TCP", over_tcp, at_least(over_tcp, 1.4)),
            ("2 ranks / 1 rank, shared memory", over_memory, at_least(over_memory, 1.4)),
            ("seconds to first step, 2 ranks", start, (start <= 1.0, "at most 1".to_string())),
        ];
        text.push_str("\n| figure | median | goal | |\n|---|---|---|---|\n");
        for (name, value, (reached, goal)) in rows {
            let verdict = if reached { "reached" } else { "missed" };
            text.push_str(&format!("| {name} | {value:.3} | {goal} | {verdict} |\n"));
        }
        Ok(text)
    }

    /// Median over rounds of the ratio of two loops in the same round.
    fn ratio(&self, loop_above: usize, loop_below: usize) -> Result<f64> {
        let rounds = self.images_per_s[loop_above].iter().zip(&self.images_per_s[loop_below]);
        let ratios: Vec<f64> = rounds.map(|(above, below)| above / below).collect();
        Ok(spread(&ratios)?.1)
    }
}

/// Times one loop; its program prints the figure alone.
fn time_loop(program: &Path, timed: &Loop, args: &Args) -> Result<f64> {
    let printed = output(
        command(program)
            .args(timed.mode)
            .env("BONFIRE_TRANSPORT", timed.transport)
            .args(["--seconds", &args.seconds.to_string()])
            .args(["--workers", &args.workers.to_string()])
            .env("RAYON_NUM_THREADS", "1"),
    )?;
    let figure = printed.trim();
    figure.parse().map_err(|_| format!("train_loop {:?} printed {figure:?}", timed.mode).into())
}

/// Times the start of `bonfire train` with 2 ranks on data of MNIST's size, from the start of the
/// program to the end of the first step; the first run only warms the page cache.
fn time_starts(program: &Path, runs: usize) -> Result<Vec<f64>> {
    let folder = tempfile::tempdir()?;
    let config = write_recipe(folder.path())?;
    let mut seconds = Vec::with_capacity(runs);
    for run in 0..=runs {
        let out = folder.path().join(format!("run-{run}"));
        let train = Train { program, config: &config, ranks: 2, overrides: &[], resume: None, out };
        let figure = train.run()?.number("seconds_to_first_step")?;
        if run > 0 {
            println!("start {run}: {figure:.3} s to the first step");
            seconds.push(figure);
        }
    }
    Ok(seconds)
}

/// Writes a recipe for the perceptron and its data, as large as MNIST; returns the recipe's path.
fn write_recipe(folder: &Path) -> Result<PathBuf> {
    for (split, count) in [("train", 60_000u32), ("t10k", 10_000)] {
        let pixels = (0..count as usize * 28 * 28).map(|index| (index % 251) as u8).collect();
        let header = [0x0803, count, 28, 28].map(u32::to_be_bytes).concat();
        write_idx(&folder.join(format!("{split}-images-idx3-ubyte")), header, pixels)?;
        let labels = (0..count).map(|index| (index % 10) as u8).collect();
        let header = [0x0801, count].map(u32::to_be_bytes).concat();
        write_idx(&folder.join(format!("{split}-labels-idx1-ubyte")), header, labels)?;
    }
    let path = folder.join("start.toml");
    let text = format!(
        "name = \"start\"\n\
         [model]\nkind = \"mlp\"\nhidden = [256]\n\
         [data]\npath = {:?}\nbatch_size = 64\n\
         [train]\nmax_steps = 20\ncheck_val_every_n_epochs = 0\n\
         [optimizer]\nkind = \"sgd\"\nlr = 0.01\n",
        folder.display().to_string()
    );
    std::fs::write(&path, text)?;
    Ok(path)
}

fn write_idx(path: &Path, mut bytes: Vec<u8>, data: Vec<u8>) -> Result<()> {
    bytes.extend(data);
    Ok(std::fs::write(path, bytes)?)
}

/// Lowest, median and highest.
pub(crate) fn spread(figures: &[f64]) -> Result<(f64, f64, f64)> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(low), Some(high)) = (sorted.first(), sorted.last()) else {
        return Err("nothing was measured".into());
    };
    let middle = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
    Ok((*low, middle, *high))
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(spread(&[4.0, 1.0, 3.0, 2.0]).unwrap(), (1.0, 2.5, 4.0));
        assert_eq!(spread(&[3.0, 1.0, 2.0]).unwrap(), (1.0, 2.0, 3.0));
        assert!(spread(&[]).is_err());
    }
}
