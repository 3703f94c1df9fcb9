//! `cargo xtask bench-collectives`: our all-reduce beside those of others, in turns.

use crate::bench::spread;
use crate::cargo::{build_release, command, output, root, run as run_command};
use crate::{Result, record};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to measure beside ours.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; every round measures everybody once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A folder of programs with PyTorch's `torchrun`, to measure gloo.
    #[arg(long, value_name = "DIR")]
    torch: Option<PathBuf>,
    /// Measures the MPI library whose `mpicc` and `mpirun` are found.
    #[arg(long)]
    mpi: bool,
    /// Writes the figures to benches/runs.
    #[arg(long)]
    record: bool,
}

const SIZES: [u64; 4] = [4 << 10, 1 << 20, 25 << 20, 100 << 20];
const RANKS: &str = "2";

/// Somebody's all-reduce.
struct Contender {
    name: &'static str,
    measure: Box<dyn Fn() -> Result<Vec<f64>>>,
    /// Microseconds by size and round.
    times: [Vec<f64>; SIZES.len()],
}

impl Contender {
    fn new(name: &'static str, measure: impl Fn() -> Result<Vec<f64>> + 'static) -> Self {
        Self { name, measure: Box::new(measure), times: Default::default() }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let programs = build_release()?;
    let scratch = tempfile::tempdir()?;
    let mut contenders = Vec::new();
    for (name, transport) in [("bonfire, shared memory", "auto"), ("bonfire, TCP", "tcp")] {
        let (program, folder) = (programs.bonfire.clone(), scratch.path().to_path_buf());
        contenders.push(Contender::new(name, move || ours(&program, transport, &folder)));
    }
    if let Some(folder) = args.torch.clone() {
        contenders.push(Contender::new("PyTorch, gloo", move || gloo(&folder)));
    }
    if args.mpi {
        let program = scratch.path().join("allreduce_mpi");
        let source = root().join("benches/peers/allreduce_mpi.c");
        run_command(command("mpicc").args(["-O2", "-o"]).arg(&program).arg(source))?;
        contenders.push(Contender::new("MPI library", move || mpi(&program)));
    }
    let copy = copy_bandwidth();
    for round in 0..args.rounds {
        let count = contenders.len();
        for turn in 0..count {
            let contender = &mut contenders[(round + turn) % count];
            let times = (contender.measure)()?;
            println!("round {}: {:<24}{times:>12.1?} us", round + 1, contender.name);
            for (list, time) in contender.times.iter_mut().zip(times) {
                list.push(time);
            }
        }
    }
    let text = report(&contenders, args.rounds, copy)?;
    print!("\n{text}");
    if args.record {
        record::write("collectives", &text)?;
    }
    Ok(())
}

fn ours(program: &Path, transport: &str, folder: &Path) -> Result<Vec<f64>> {
    let file = folder.join("ours.json");
    let mut times = Vec::new();
    for size in SIZES {
        run_command(
            command(program)
                .args(["bench", "collectives", "--nproc-per-node", RANKS, "--ops", "all_reduce"])
                .args(["--sizes", &size.to_string(), "--transport", transport])
                .args(["--iterations", &iterations(size).to_string(), "--json"])
                .arg(&file)
                .stdout(std::process::Stdio::null()),
        )?;
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(&file)?)?;
        let time = rows.first().and_then(|row| row["time_us"].as_f64());
        times.push(time.ok_or("a report without a time")?);
    }
    Ok(times)
}

/// As the programs of the others do.
fn iterations(size: u64) -> usize {
    match size {
        0..=65_536 => 1000,
        65_537..=2_097_152 => 100,
        _ => 20,
    }
}

fn gloo(folder: &Path) -> Result<Vec<f64>> {
    let script = root().join("benches/peers/allreduce_gloo.py");
    let mut torchrun = command(folder.join("torchrun"));
    torchrun.args(["--nproc-per-node", RANKS, "--master-port", "29519"]).arg(script);
    lines(torchrun.args(SIZES.map(|size| size.to_string())).env("OMP_NUM_THREADS", "1"))
}

fn mpi(program: &Path) -> Result<Vec<f64>> {
    let mut mpirun = command("mpirun");
    mpirun.args(["--allow-run-as-root", "-n", RANKS]).arg(program);
    lines(mpirun.args(SIZES.map(|size| size.to_string())))
}

/// Reads the second number of each line.
fn lines(command: &mut std::process::Command) -> Result<Vec<f64>> {
    let text = output(command)?;
    let number = |line: &str| line.split_whitespace().nth(1)?.parse::<f64>().ok();
    let times: Vec<f64> = text.lines().filter_map(number).collect();
    if times.len() == SIZES.len() {
        return Ok(times);
    }
    Err(format!("{} times expected in {text:?}", SIZES.len()).into())
}

/// Bytes per second that two threads together copy, with buffers far larger than the caches.
fn copy_bandwidth() -> f64 {
    const BYTES: usize = 128 << 20;
    const ROUNDS: usize = 8;
    let copy = || {
        let (source, mut target) = (vec![1u8; BYTES], vec![0u8; BYTES]);
        target.copy_from_slice(&source);
        let start = Instant::now();
        for _ in 0..ROUNDS {
            std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
        }
        (ROUNDS * BYTES) as f64 / start.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(copy);
        let own = copy();
        own + other.join().unwrap_or(own)
    })
}

fn report(contenders: &[Contender], rounds: usize, copy: f64) -> Result<String> {
    let mut text = format!(
        "All-reduce (sum, f32, in place) of {RANKS} processes. Median of {rounds} rounds in turns; of \
         each round the median over iterations of the slowest rank. Two threads that copy 128 MiB each \
         move {:.1} GB/s together.\n\n| bytes |",
        copy / 1e9
    );
    for Contender { name, .. } in contenders {
        text.push_str(&format!(" {name}: us | GB/s |"));
    }
    text.push_str(&format!("\n|---|{}\n", "---|---|".repeat(contenders.len())));
    for (index, size) in SIZES.iter().enumerate() {
        text.push_str(&format!("| {size} |"));
        for contender in contenders {
            let (_, time, _) = spread(&contender.times[index])?;
            text.push_str(&format!(" {time:.1} | {:.3} |", *size as f64 / time / 1e3));
        }
        text.push('\n');
    }
    Ok(text)
}
