//! `cargo xtask bench-outputs`: what a run pays for telling what it does.

use crate::cargo::{build_release, command, output};
use crate::pairs::Pairs;
use crate::{Result, record};
use std::path::Path;

/// How long to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Processes that each comparison is spread over.
    #[arg(long, default_value_t = 5)]
    processes: usize,
    /// Seconds that each process measures.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

/// A network, the steps of a turn, and the least share of the hand-written loop's speed that all outputs
/// have to leave.
struct Network {
    title: &'static str,
    name: &'static str,
    turn_steps: &'static str,
    least: f64,
}

const NETWORKS: [Network; 2] = [
    Network { title: "MLP", name: "mlp", turn_steps: "26", least: 0.97 },
    Network { title: "CNN", name: "cnn", turn_steps: "5", least: 0.98 },
];

/// Two loops, and what is asked of the second.
struct Comparison {
    title: &'static str,
    base: &'static str,
    other: &'static str,
    ranks: usize,
    asks: Asks,
}

enum Asks {
    Nothing,
    /// The network's own share.
    Outputs,
    /// The least share of the speed that a profile has to leave.
    Profile,
}

const LEAST_WHILE_PROFILED: f64 = 0.97;

const COMPARISONS: [Comparison; 5] = [
    Comparison {
        title: "the hand-written loop against itself",
        base: "burn",
        other: "burn",
        ranks: 1,
        asks: Asks::Nothing,
    },
    Comparison {
        title: "Trainer / hand-written",
        base: "burn",
        other: "trainer",
        ranks: 1,
        asks: Asks::Nothing,
    },
    Comparison {
        title: "Trainer with all outputs / hand-written",
        base: "burn",
        other: "outputs",
        ranks: 1,
        asks: Asks::Outputs,
    },
    Comparison {
        title: "every step profiled / not profiled",
        base: "outputs",
        other: "profiled",
        ranks: 1,
        asks: Asks::Profile,
    },
    Comparison {
        title: "2 ranks, every step profiled / not profiled",
        base: "outputs",
        other: "profiled",
        ranks: 2,
        asks: Asks::Profile,
    },
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let programs = build_release()?;
    let mut text = format!(
        "MLP 784-256-10 and LeNet (16, 32 channels) on 28x28 images, SGD, batches of 64 a rank, one thread of \
         arithmetic, the same loader on the training thread; loss and accuracy are read every 50 steps. *All \
         outputs*: progress, metrics.csv, metrics.jsonl, event files, the report; checkpoints have a bench of \
         their own.\n\n\
         Two loops of one process take turns of some milliseconds on the same core of the processor, their \
         memory from one heap: what else the machine does hits both alike. Speed is the ratio of the sums of \
         their turns, the interval a bootstrap over the pairs of turns of {} processes of {} s each.\n\n\
         | network | comparison | pairs | speed | 95 % | goal | |\n|---|---|---|---|---|---|---|\n",
        args.processes, args.seconds
    );
    for network in &NETWORKS {
        for comparison in &COMPARISONS {
            let pairs = measure(&programs.train_loop, network, comparison, args)?;
            let least = match comparison.asks {
                Asks::Nothing => None,
                Asks::Outputs => Some(network.least),
                Asks::Profile => Some(LEAST_WHILE_PROFILED),
            };
            let row = row(network, comparison, &pairs, least)?;
            print!("{row}");
            text.push_str(&row);
        }
    }
    if args.record {
        record::write("outputs", &text)?;
    }
    Ok(())
}

fn row(
    network: &Network,
    comparison: &Comparison,
    pairs: &Pairs,
    least: Option<f64>,
) -> Result<String> {
    let speed = pairs.speed()?;
    let (low, high) = pairs.interval()?;
    let (goal, verdict) = match least {
        None => (String::new(), ""),
        Some(least) => {
            let verdict = match speed >= least {
                true if low >= least => "reached",
                true => "reached; the interval reaches below",
                false if high < least => "missed",
                false => "missed; the interval reaches above",
            };
            (format!("at least {least}"), verdict)
        }
    };
    let (name, title, count) = (network.title, comparison.title, pairs.len());
    Ok(format!(
        "| {name} | {title} | {count} | {speed:.3} | {low:.3} to {high:.3} | {goal} | {verdict} |\n"
    ))
}

fn measure(
    program: &Path,
    network: &Network,
    comparison: &Comparison,
    args: &Args,
) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    for _ in 0..args.processes {
        let mut run = command(program);
        run.args(["compare", "--base", comparison.base, "--other", comparison.other])
            .args(["--network", network.name, "--turn-steps", network.turn_steps])
            .args(["--seconds", &args.seconds.to_string()])
            .env("RAYON_NUM_THREADS", "1")
            // The heap of a thread of its own would favour one of the loops.
            .env("MALLOC_ARENA_MAX", "1");
        if comparison.ranks > 1 {
            run.args(["--ranks", &comparison.ranks.to_string()]);
        }
        pairs.extend(serde_json::from_str(&output(&mut run)?)?);
    }
    Ok(pairs)
}
