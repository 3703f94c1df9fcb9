//! `cargo xtask bench-overhead`: what the exchange of gradients costs two ranks of one machine.

mod report;

use crate::cargo::{build_release, command, output, root};
use crate::train_loop::{arguments, figures, number};
use crate::{Result, record};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What to measure, and how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; every round measures every loop of every network once.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds that each loop is measured in a round, and at least three steps.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Networks, of `mlp`, `cnn` and `resnet18`.
    #[arg(long, value_delimiter = ',', default_value = "mlp,cnn,resnet18")]
    networks: Vec<String>,
    /// A folder of programs with PyTorch's `torchrun`, to measure `DistributedDataParallel` beside
    /// ours.
    #[arg(long, value_name = "DIR")]
    torch: Option<PathBuf>,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

/// A network and what its loops are to reach.
struct Network {
    /// As the programs call it.
    key: &'static str,
    name: &'static str,
    /// Least efficiency over shared memory and over TCP.
    goals: [Option<f64>; 2],
    /// Largest part of the all-reduce's time that ranks may wait for it over TCP.
    wait: Option<f64>,
}

const NETWORKS: [Network; 3] = [
    Network { key: "mlp", name: "MLP 784-256-10", goals: [Some(0.85), None], wait: None },
    Network { key: "cnn", name: "CNN", goals: [Some(0.97), Some(0.97)], wait: None },
    Network {
        key: "resnet18",
        name: "ResNet-18",
        goals: [Some(0.97), Some(0.97)],
        wait: Some(0.3),
    },
];

/// A loop: what it is called, and how it is started.
struct Loop {
    name: &'static str,
    program: Program,
    args: &'static str,
}

/// Whose loop it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    /// Ours, over a transport.
    Bonfire(&'static str),
    PyTorch,
}

const LOOPS: [Loop; 8] = [
    Loop { name: "1 rank", program: Program::Bonfire("auto"), args: "--ranks 1" },
    Loop {
        name: "2 ranks, no exchange",
        program: Program::Bonfire("auto"),
        args: "--ranks 2 --alone",
    },
    Loop {
        name: "2 ranks, no exchange, in step",
        program: Program::Bonfire("auto"),
        args: "--ranks 2 --in-step",
    },
    Loop { name: "2 ranks, shared memory", program: Program::Bonfire("auto"), args: "--ranks 2" },
    Loop { name: "2 ranks, TCP", program: Program::Bonfire("tcp"), args: "--ranks 2" },
    Loop {
        name: "2 ranks, TCP, no overlap",
        program: Program::Bonfire("tcp"),
        args: "--ranks 2 --no-overlap",
    },
    Loop { name: "PyTorch, 2 ranks, no exchange", program: Program::PyTorch, args: "--alone" },
    Loop { name: "PyTorch DDP, 2 ranks, gloo", program: Program::PyTorch, args: "" },
];
const ONE_RANK: usize = 0;
const ALONE: usize = 1;
const IN_STEP: usize = 2;
const OVER_SHARED_MEMORY: usize = 3;
const OVER_TCP: usize = 4;
const WITHOUT_OVERLAP: usize = 5;
const TORCH_ALONE: usize = 6;
const TORCH: usize = 7;

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    let networks = networks(&args.networks)?;
    let program = build_release()?.train_loop;
    let figures = Figures::measure(&program, &networks, args)?;
    let text = figures.report(args)?;
    print!("\n{text}");
    if args.record {
        record::write("overhead", &text)?;
    }
    Ok(())
}

fn networks(keys: &[String]) -> Result<Vec<&'static Network>> {
    let network = |key: &String| {
        let found = NETWORKS.iter().find(|network| network.key == key);
        found.ok_or_else(|| format!("--networks {key}: must be mlp, cnn or resnet18").into())
    };
    keys.iter().map(network).collect()
}

/// What the programs printed, by network, loop and round.
struct Figures<'a> {
    networks: &'a [&'static Network],
    torch: bool,
    printed: Vec<[Vec<Value>; LOOPS.len()]>,
}

impl<'a> Figures<'a> {
    /// Measures the loops in turns, so that a slow minute of the machine hits all of them.
    fn measure(program: &Path, networks: &'a [&'static Network], args: &Args) -> Result<Self> {
        let torch = args.torch.is_some();
        let mut printed: Vec<[Vec<Value>; LOOPS.len()]> = Vec::new();
        printed.resize_with(networks.len(), Default::default);
        for round in 0..args.rounds {
            for (network, printed) in networks.iter().zip(&mut printed) {
                for turn in 0..LOOPS.len() {
                    let which = (round + turn) % LOOPS.len();
                    let Loop { name, program: whose, .. } = &LOOPS[which];
                    let figures = match (whose, &args.torch) {
                        (Program::Bonfire(transport), _) => {
                            figures(program, transport, &ours(network, which, args))?
                        }
                        (Program::PyTorch, Some(folder)) => pytorch(folder, network, which, args)?,
                        (Program::PyTorch, None) => continue,
                    };
                    let rate = number(&figures, "images_per_s")?;
                    println!(
                        "round {}: {:<16}{name:<32}{rate:>9.1} images/s",
                        round + 1,
                        network.name
                    );
                    printed[which].push(figures);
                }
            }
        }
        Ok(Self { networks, torch, printed })
    }
}

fn ours(network: &Network, which: usize, args: &Args) -> Vec<String> {
    let (key, seconds) = (network.key, args.seconds);
    let loop_args = LOOPS[which].args;
    arguments(&format!("parallel --network {key} --seconds {seconds} {loop_args}"))
}

fn pytorch(folder: &Path, network: &Network, which: usize, args: &Args) -> Result<Value> {
    let mut torchrun = command(folder.join("torchrun"));
    torchrun.args(["--nproc-per-node", "2", "--master-port", "29519"]);
    torchrun.arg(root().join("benches/peers/ddp.py")).env("OMP_NUM_THREADS", "1");
    let (key, seconds) = (network.key, args.seconds);
    let words = format!("--network {key} --seconds {seconds} {}", LOOPS[which].args);
    let printed = output(torchrun.args(arguments(&words)))?;
    Ok(serde_json::from_str(&printed)?)
}
