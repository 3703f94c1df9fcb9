//! `cargo xtask soak hooks`: every way of exchanging gradients learns as well as the plain one, and
//! sends as few bytes as it says.

mod ways;

use crate::bonfire::Train;
use crate::cargo::{build_release, root};
use crate::{Result, record};
use std::path::{Path, PathBuf};
use ways::{WAYS, Way};

/// How often, and how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seeds, each a run of every way.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Epochs in place of the recipe's.
    #[arg(long)]
    epochs: Option<u64>,
}

const RECIPE: &str = "configs/mnist5k.toml";
const RANKS: usize = 2;
/// How far the mean accuracy may lie below that of whole gradients.
const ACCURACY_LOSS: f64 = 0.01;
/// How far a way's bytes may lie off what it says, as a part of that.
const BYTES_OFF: f64 = 0.03;

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.seeds == 0 {
        return Err("--seeds must be at least 1".into());
    }
    let program = build_release()?.bonfire;
    let folder = tempfile::tempdir()?;
    let soak = Soak { program: &program, config: root().join(RECIPE), folder: folder.path(), args };
    let mut outcomes: [Outcome; WAYS.len()] = Default::default();
    for seed in 1..=args.seeds {
        for (way, outcome) in WAYS.iter().zip(&mut outcomes) {
            soak.train(way, seed, outcome)?;
        }
    }
    let (text, failures) = report(&outcomes, args);
    print!("\n{text}");
    record::write("soak-hooks", &text)?;
    match failures {
        0 => Ok(()),
        failures => Err(format!("{failures} of the expectations failed").into()),
    }
}

/// Runs of one recipe.
struct Soak<'a> {
    program: &'a Path,
    config: PathBuf,
    folder: &'a Path,
    args: &'a Args,
}

/// What the runs of one way came to, by seed.
#[derive(Default)]
struct Outcome {
    accuracies: Vec<f64>,
    /// Bytes of a step that goes the way, as a part of what the same step sends around a ring in f32.
    bytes: Vec<f64>,
    /// Steps of a run.
    steps: f64,
}

impl Soak<'_> {
    fn train(&self, way: &Way, seed: u64, outcome: &mut Outcome) -> Result<()> {
        let mut overrides = vec![
            format!("seed={seed}"),
            "distributed.transport=tcp".to_string(),
            "distributed.algorithm=ring".to_string(),
        ];
        overrides.extend(self.args.epochs.map(|epochs| format!("train.max_epochs={epochs}")));
        overrides.extend(way.settings.iter().map(ToString::to_string));
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let out = self.folder.join(format!("{}-{seed}", way.name.replace([' ', ','], "-")));
        let (program, config, resume) = (self.program, self.config.as_path(), None);
        let train = Train { program, config, ranks: RANKS, overrides: &overrides, resume, out };
        let summary = train.run()?;

        let accuracy = summary.number("valid_accuracy")?;
        outcome.steps = summary.number("steps")?;
        let bytes = way.bytes_of_a_step(summary.number("bytes_sent")?, outcome.steps);
        println!("seed {seed}: {:<36}accuracy {accuracy:.4}, bytes {bytes:.4}", way.name);
        outcome.accuracies.push(accuracy);
        outcome.bytes.push(bytes);
        Ok(())
    }
}

/// The figures as a Markdown table, and how many of the expectations failed.
fn report(outcomes: &[Outcome], args: &Args) -> (String, usize) {
    let epochs = args.epochs.map_or(String::new(), |epochs| format!(" ({epochs} epochs)"));
    let mut text = format!(
        "{RECIPE}{epochs} with {RANKS} ranks over TCP, {} seeds. The mean accuracy may lie {ACCURACY_LOSS} below \
         that of whole gradients. Bytes: sent by rank 0 in a step that goes the way, as a part of what an \
         all-reduce of the gradients in f32 sends around a ring, the largest of the seeds; they may lie {:.0} % \
         off what is expected.\n\n\
         | exchange | accuracy, mean | by seed | less than whole | bytes | expected | |\n\
         |---|---|---|---|---|---|---|\n",
        args.seeds,
        BYTES_OFF * 100.0,
    );
    let whole = outcomes.first().map_or(0.0, |outcome| mean(&outcome.accuracies));
    let mut failed = 0;
    for (way, Outcome { accuracies, bytes, steps }) in WAYS.iter().zip(outcomes) {
        let (accuracy, expected) = (mean(accuracies), (way.bytes)(*steps));
        let mut failures = Vec::new();
        // A mean of a few thousandths is exact to far less than this.
        if way.held_to_accuracy && accuracy < whole - ACCURACY_LOSS - 1e-9 {
            failures.push("FAILED: accuracy");
        }
        if bytes.iter().any(|bytes| (bytes / expected - 1.0).abs() > BYTES_OFF) {
            failures.push("FAILED: bytes");
        }
        failed += failures.len();
        let by_seed: Vec<String> = accuracies.iter().map(|value| format!("{value:.4}")).collect();
        let most = bytes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        text.push_str(&format!(
            "| {} | {accuracy:.4} | {} | {:.4} | {most:.4} | {expected:.4} | {} |\n",
            way.name,
            by_seed.join(", "),
            whole - accuracy,
            match (failures.is_empty(), way.held_to_accuracy) {
                (true, true) => "as expected".to_string(),
                (true, false) => "as expected; accuracy without a goal".to_string(),
                (false, _) => failures.join(", "),
            },
        ));
    }
    (text, failed)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(accuracy: f64, bytes: f64) -> Vec<Outcome> {
        let steps = 100.0;
        let good = |way: &Way| {
            let bytes = vec![(way.bytes)(steps); 2];
            Outcome { accuracies: vec![0.97, 0.98], bytes, steps }
        };
        let mut outcomes: Vec<Outcome> = WAYS.iter().map(good).collect();
        if let Some(one) = outcomes.get_mut(1) {
            one.accuracies = vec![accuracy; 2];
            one.bytes[1] *= bytes;
        }
        outcomes
    }

    #[test]
    fn bad_accuracies_and_bytes_fail() {
        let args = Args { seeds: 2, epochs: None };
        for (accuracy, bytes, failures) in
            [(0.965, 1.02, 0), (0.964, 1.0, 1), (0.99, 1.04, 1), (0.9, 0.9, 2)]
        {
            let (text, failed) = report(&outcomes(accuracy, bytes), &args);
            assert_eq!(failed, failures, "{text}");
            assert_eq!(text.matches("FAILED").count(), failures, "{text}");
        }
    }
}
