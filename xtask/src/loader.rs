//! `cargo xtask bench-loader`: how fast images are loaded, and how long a training step waits for them.

use crate::cargo::{build_release, command, output, root};
use crate::train_loop::{median, number};
use crate::{Result, record};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Least images per second, by those of PyTorch's loader.
const RATIO: f64 = 1.5;
/// Largest share of its time that a training step may wait.
const WAIT: f64 = 0.05;

/// What to measure, and how often.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; every round starts every program once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Workers of either loader: threads of ours, processes of PyTorch's.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// JPEG files to make and read.
    #[arg(long, default_value_t = 2048)]
    images: usize,
    /// Images in a batch.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Seconds that each loader is measured in a round.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// A folder of programs with a `python` that has PyTorch and torchvision, to measure its `DataLoader` beside
    /// ours.
    #[arg(long, value_name = "DIR")]
    torch: Option<PathBuf>,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

/// The figures of a round: ours, and PyTorch's if it is measured.
struct Round {
    ours: Value,
    torch: Option<Value>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    let program = build_release()?.folder.join("loader");
    let files = tempfile::tempdir()?;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        let round = Round {
            ours: ours(&program, files.path(), args)?,
            torch: args.torch.as_deref().map(|bin| torch(bin, files.path(), args)).transpose()?,
        };
        let beside = round.torch.as_ref().map(Value::to_string).unwrap_or_default();
        println!("round {number}: {} {beside}", round.ours);
        rounds.push(round);
    }
    let text = report(&rounds, args)?;
    print!("\n{text}");
    if args.record {
        record::write("loader", &text)?;
    }
    Ok(())
}

fn ours(program: &Path, files: &Path, args: &Args) -> Result<Value> {
    let mut command = command(program);
    command.args(["--images", &args.images.to_string()]).env("RAYON_NUM_THREADS", "1");
    printed(command, files, args)
}

fn torch(programs: &Path, files: &Path, args: &Args) -> Result<Value> {
    let mut command = command(programs.join("python"));
    command.arg(root().join("benches/peers/loader.py")).env("OMP_NUM_THREADS", "1");
    printed(command, files, args)
}

/// Runs a program with the options that both have.
fn printed(mut command: std::process::Command, files: &Path, args: &Args) -> Result<Value> {
    command.arg("--folder").arg(files);
    command.args(["--batch-size", &args.batch_size.to_string()]);
    command.args(["--workers", &args.workers.to_string()]);
    command.args(["--seconds", &args.seconds.to_string()]);
    let text = output(&mut command)?;
    serde_json::from_str(&text).map_err(|error| format!("it printed {text:?}: {error}").into())
}

fn report(rounds: &[Round], args: &Args) -> Result<String> {
    let ours = |key: &str| -> Result<Vec<f64>> {
        rounds.iter().map(|round| number(&round.ours, key)).collect()
    };
    let rates = ours("images_per_s")?;
    let mut text = format!(
        "{} JPEG files of 500 x 375 pixels in an image folder, decoded, cut and resized to 224 x 224 at random, flipped, \
         normalised, in batches of {}; {} workers. Medians of {} rounds, in which the programs take turns.\n\n\
         | | median | by round | goal | |\n|---|---|---|---|---|\n",
        args.images,
        args.batch_size,
        args.workers,
        rounds.len(),
    );
    text.push_str(&row("images/s of the loader alone", &rates, 1, "", None));
    let torch: Option<Vec<&Value>> = rounds.iter().map(|round| round.torch.as_ref()).collect();
    if let Some(torch) = torch {
        let theirs: Vec<f64> =
            torch.iter().map(|figures| number(figures, "images_per_s")).collect::<Result<_>>()?;
        text.push_str(&row("images/s of PyTorch's DataLoader", &theirs, 1, "", None));
        let ratios: Vec<f64> = rates.iter().zip(&theirs).map(|(our, their)| our / their).collect();
        let reached = median(&ratios) >= RATIO;
        text.push_str(&row(
            "ours over PyTorch's",
            &ratios,
            2,
            &format!(">= {RATIO}"),
            Some(reached),
        ));
    }
    let waits = ours("wait_share")?;
    let (goal, reached) = (format!("< {WAIT}"), median(&waits) < WAIT);
    text.push_str(&row("share of an epoch that a step waits", &waits, 4, &goal, Some(reached)));
    let without = ours("unprefetched_wait_share")?;
    text.push_str(&row("the same without workers", &without, 4, "", None));
    text.push_str(
        "\nThe step that waits sleeps half as long again as the loader alone takes for a batch, so there is CPU to spare; \
         the first batch of the epoch counts too.\n",
    );
    Ok(text)
}

fn row(name: &str, values: &[f64], digits: usize, goal: &str, reached: Option<bool>) -> String {
    let by_round: Vec<String> = values.iter().map(|value| format!("{value:.digits$}")).collect();
    let verdict = match reached {
        Some(true) => "reached",
        Some(false) => "MISSED",
        None => "",
    };
    let (median, by_round) = (median(values), by_round.join(", "));
    format!("| {name} | {median:.digits$} | {by_round} | {goal} | {verdict} |\n")
}
