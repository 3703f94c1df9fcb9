//! `cargo xtask bench-layers`: what batch normalisation and the look for overflows cost.

use crate::cargo::{build_release, command, output};
use crate::{Result, record};
use serde_json::Value;
use std::path::Path;

/// How often to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; every round starts both programs once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

/// A ratio of two times of one program.
struct Ratio {
    name: &'static str,
    program: Program,
    time: &'static str,
    over: &'static str,
    /// Largest ratio that is to be reached, if one is.
    goal: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    BatchNorm,
    ScalerPass,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::BatchNorm => "batch_norm",
            Self::ScalerPass => "scaler_pass",
        }
    }
}

const RATIOS: [Ratio; 6] = [
    Ratio {
        name: "batch norm, ours over Burn's",
        program: Program::BatchNorm,
        time: "bonfire_ms",
        over: "burn_ms",
        goal: Some(1.05),
    },
    Ratio {
        name: "SyncBatchNorm of one rank over batch norm, both ours",
        program: Program::BatchNorm,
        time: "synchronized_ms",
        over: "bonfire_ms",
        goal: Some(1.05),
    },
    Ratio {
        name: "scaler's pass over an update of SGD with momentum",
        program: Program::ScalerPass,
        time: "two_norm_ms",
        over: "sgd_ms",
        goal: None,
    },
    Ratio {
        name: "scaler's pass over an update of AdamW",
        program: Program::ScalerPass,
        time: "two_norm_ms",
        over: "adamw_ms",
        goal: None,
    },
    Ratio {
        name: "what fp16 adds to a step of SGD with momentum",
        program: Program::ScalerPass,
        time: "sgd_with_pass_ms",
        over: "sgd_ms",
        goal: Some(1.05),
    },
    Ratio {
        name: "what fp16 adds to a step of AdamW",
        program: Program::ScalerPass,
        time: "adamw_with_pass_ms",
        over: "adamw_ms",
        goal: Some(1.05),
    },
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    let folder = build_release()?.folder;
    let mut figures: [Vec<Value>; 2] = Default::default();
    for round in 1..=args.rounds {
        for (program, figures) in [Program::BatchNorm, Program::ScalerPass].iter().zip(&mut figures)
        {
            let found = times(&folder, *program)?;
            println!("round {round}: {} {found}", program.name());
            figures.push(found);
        }
    }
    let text = report(&figures)?;
    print!("\n{text}");
    if args.record {
        record::write("layers", &text)?;
    }
    Ok(())
}

fn times(folder: &Path, program: Program) -> Result<Value> {
    let mut command = command(folder.join(program.name()));
    let printed = output(command.env("RAYON_NUM_THREADS", "1"))?;
    serde_json::from_str(&printed)
        .map_err(|error| format!("{} printed {printed:?}: {error}", program.name()).into())
}

fn report(figures: &[Vec<Value>; 2]) -> Result<String> {
    let mut text = format!(
        "One thread. Batch normalisation: forward and backward over 64x64x32x32 values in f32. Updates: 11.2 million \
         parameters in buckets of 25 MiB. Medians of {} rounds, in each of which the parts take turns.\n\n\
         | | ms | over ms | ratio | by round | goal | |\n|---|---|---|---|---|---|---|\n",
        figures[0].len(),
    );
    for Ratio { name, program, time, over, goal } in &RATIOS {
        let rounds = &figures[usize::from(*program == Program::ScalerPass)];
        let of = |key: &str| -> Result<Vec<f64>> {
            let number = |round: &Value| round[key].as_f64();
            let all: Option<Vec<f64>> = rounds.iter().map(number).collect();
            all.ok_or_else(|| format!("{} printed no {key}", program.name()).into())
        };
        let (times, overs) = (of(time)?, of(over)?);
        let ratios: Vec<f64> = times.iter().zip(&overs).map(|(time, over)| time / over).collect();
        let ratio = median(&ratios);
        let by_round: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
        let (goal, reached) = match goal {
            Some(goal) if ratio <= *goal => (format!("<= {goal}"), "reached"),
            Some(goal) => (format!("<= {goal}"), "MISSED"),
            None => (String::new(), ""),
        };
        text.push_str(&format!(
            "| {name} | {:.2} | {:.2} | {ratio:.3} | {} | {goal} | {reached} |\n",
            median(&times),
            median(&overs),
            by_round.join(", "),
        ));
    }
    Ok(text)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
