//! `cargo xtask bench-checkpoints`: what saving costs a step, and how soon a resumed run trains.

use crate::bonfire::Train;
use crate::cargo::{build_release, command, output, root};
use crate::train_loop::{median, number};
use crate::{Result, record};
use serde_json::Value;

/// How often to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

/// Longest time from the start of a resumed run to its first step.
const SECONDS_TO_FIRST_STEP: f64 = 1.5;

const RESNET_18: [&str; 4] = [
    "model={kind=\"resnet\",depth=18}",
    "data={kind=\"synthetic\",num_samples=64,batch_size=2}",
    "optimizer={kind=\"sgd\",lr=0.01,momentum=0.9}",
    "schedule={kind=\"constant\"}",
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    let programs = build_release()?;
    let mut rounds = Vec::new();
    for round in 1..=args.rounds {
        let mut saving = command(programs.folder.join("saving"));
        let text = output(saving.env("RAYON_NUM_THREADS", "1"))?;
        let figures: Value = serde_json::from_str(&text)
            .map_err(|error| format!("saving printed {text:?}: {error}"))?;
        let seconds = seconds_to_first_step(&programs.bonfire)?;
        println!("round {round}: {figures} first step after {seconds:.3} s");
        rounds.push((figures, seconds));
    }
    let text = report(&rounds)?;
    print!("\n{text}");
    if args.record {
        record::write("checkpoints", &text)?;
    }
    Ok(())
}

/// From the start of a resumed run of ResNet-18 to the end of its first step.
fn seconds_to_first_step(program: &std::path::Path) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let config = root().join("configs/digits.toml");
    let train = |out: &str, steps: &str, resume| {
        let overrides: Vec<&str> = RESNET_18.into_iter().chain([steps]).collect();
        let out = folder.path().join(out);
        Train { program, config: &config, ranks: 1, overrides: &overrides, resume, out }.run()
    };
    train("first", "train={max_steps=2}", None)?;
    let first = folder.path().join("first");
    train("resumed", "train={max_steps=4}", Some(first))?.number("seconds_to_first_step")
}

fn report(rounds: &[(Value, f64)]) -> Result<String> {
    let of = |key: &str| -> Result<f64> {
        let values = rounds.iter().map(|(figures, _)| number(figures, key));
        Ok(median(&values.collect::<Result<Vec<f64>>>()?))
    };
    let seconds = median(&rounds.iter().map(|(_, seconds)| *seconds).collect::<Vec<_>>());
    let (added, copy) = (of("added_ms")?, of("copy_ms")?);
    let verdict = |reached: bool| if reached { "reached" } else { "MISSED" };
    Ok(format!(
        "ResNet-18 with momentum, batches of 2, one thread, a checkpoint of {:.1} MB after every fifth step. Medians of {} \
         rounds; within a round of 12 checkpoints.\n\n\
         | | | goal | |\n|---|---|---|---|\n\
         | a step, ms | {:.1} | | |\n\
         | what a checkpoint adds between two steps, ms | {added:.1} | <= the copy | {} |\n\
         | the longest of a round, ms | {:.1} | | |\n\
         | a copy of the same tensors, ms | {copy:.1} | | |\n\
         | writing it, checksums and fsync with it, ms | {:.1} | | |\n\
         | a resumed run, from its start to the end of its first step, s | {seconds:.3} | <= {SECONDS_TO_FIRST_STEP} | {} |\n",
        of("bytes")? / 1e6,
        rounds.len(),
        of("step_ms")?,
        verdict(added <= copy),
        of("longest_ms")?,
        of("write_ms")?,
        verdict(seconds <= SECONDS_TO_FIRST_STEP),
    ))
}
