//! `cargo xtask bench-layers`: what batch normalisation and the look for overflows cost.

use crate::cargo::{build_release, command, output};
use crate::train_loop::{arguments, figures, median, number};
use crate::{Result, record};
use serde_json::Value;
use std::path::Path;

/// How often to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; every round starts every program once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

/// A ratio of two times, in milliseconds.
struct Ratio {
    name: &'static str,
    time: &'static str,
    over: &'static str,
    /// Largest ratio that is to be reached, if one is.
    goal: Option<f64>,
}

const RATIOS: [Ratio; 6] = [
    Ratio {
        name: "batch norm, ours over Burn's",
        time: "bonfire_ms",
        over: "burn_ms",
        goal: Some(1.05),
    },
    Ratio {
        name: "SyncBatchNorm of one rank over batch norm, both ours",
        time: "synchronized_ms",
        over: "bonfire_ms",
        goal: Some(1.05),
    },
    Ratio {
        name: "look for overflows over a training step of ResNet-18",
        time: "two_norm_ms",
        over: "step_ms",
        goal: Some(0.05),
    },
    Ratio {
        name: "look for overflows over the same step's update by SGD with momentum",
        time: "two_norm_ms",
        over: "sgd_ms",
        goal: None,
    },
    Ratio {
        name: "look for overflows over an update by AdamW",
        time: "two_norm_ms",
        over: "adamw_ms",
        goal: None,
    },
    Ratio {
        name: "the same with the largest absolute value for a norm",
        time: "infinity_norm_ms",
        over: "adamw_ms",
        goal: None,
    },
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    let folder = build_release()?.folder;
    let mut rounds = Vec::new();
    for round in 1..=args.rounds {
        let found = [
            printed(&folder, "batch_norm")?,
            printed(&folder, "scaler_pass")?,
            figures(&folder.join("train_loop"), "auto", &arguments(STEP))?,
        ];
        println!("round {round}: {} {} step {}", found[0], found[1], found[2]["step_ms"]);
        rounds.push(found);
    }
    let text = report(&rounds)?;
    print!("\n{text}");
    if args.record {
        record::write("layers", &text)?;
    }
    Ok(())
}

/// A training step of as many parameters as `scaler_pass` updates.
const STEP: &str = "parallel --network resnet18 --ranks 1 --seconds 4";

fn printed(folder: &Path, program: &str) -> Result<Value> {
    let text = output(command(folder.join(program)).env("RAYON_NUM_THREADS", "1"))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("{program} printed {text:?}: {error}").into())
}

fn report(rounds: &[[Value; 3]]) -> Result<String> {
    let mut text = format!(
        "One thread. Batch normalisation: forward and backward over 64x64x32x32 values in f32. The look for overflows \
         finds the norm too; it, and updates, are over 11.2 million parameters in buckets of 25 MiB. A training step of \
         ResNet-18 has a batch of 32 images of 32x32. Medians of {} rounds; within a program the parts take turns.\n\n\
         An update reads and writes five (SGD with momentum) or seven (AdamW) numbers a parameter, the look reads one: \
         by the bytes alone it is at least 0.20 or 0.14 of an update.\n\n\
         | | ms | over ms | ratio | by round | goal | |\n|---|---|---|---|---|---|---|\n",
        rounds.len(),
    );
    for Ratio { name, time, over, goal } in &RATIOS {
        let (times, overs) = (all(rounds, time)?, all(rounds, over)?);
        let ratios: Vec<f64> = times.iter().zip(&overs).map(|(time, over)| time / over).collect();
        let ratio = median(&ratios);
        let by_round: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.4}")).collect();
        let (goal, reached) = match goal {
            Some(goal) if ratio <= *goal => (format!("<= {goal}"), "reached"),
            Some(goal) => (format!("<= {goal}"), "MISSED"),
            None => (String::new(), ""),
        };
        text.push_str(&format!(
            "| {name} | {:.2} | {:.2} | {ratio:.4} | {} | {goal} | {reached} |\n",
            median(&times),
            median(&overs),
            by_round.join(", "),
        ));
    }
    Ok(text)
}

/// A figure of every round.
fn all(rounds: &[[Value; 3]], key: &str) -> Result<Vec<f64>> {
    let of = |round: &[Value; 3]| {
        let found = round.iter().find(|figures| figures.get(key).is_some());
        number(found.unwrap_or(&round[0]), key)
    };
    rounds.iter().map(of).collect()
}
