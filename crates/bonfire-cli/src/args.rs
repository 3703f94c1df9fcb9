use crate::bench::CollectivesArgs;
use crate::data_sets::DataCommand;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Trains Burn models on one or many processes.
#[derive(Parser)]
#[command(name = "bonfire", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Train(TrainArgs),
    Analyze(AnalyzeArgs),
    #[command(subcommand)]
    Bench(Bench),
    #[command(subcommand)]
    Data(DataCommand),
}

/// Measures how fast parts of Bonfire are on this machine
#[derive(Subcommand)]
pub(crate) enum Bench {
    Collectives(CollectivesArgs),
}

/// Says which rank is behind, in which collective, since when
///
/// Reads the flight records that the ranks of a run have left: at their first failure, or when asked
/// by SIGUSR2 (to the launcher or to a rank). They lie in the folder `flight` of the run's folder,
/// or where BONFIRE_FLIGHT_DIR says.
#[derive(clap::Args)]
pub(crate) struct AnalyzeArgs {
    /// The folder of the dumps.
    #[arg(value_name = "DUMP_DIR")]
    pub(crate) folder: PathBuf,
    /// Prints the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Trains a model as a recipe says
///
/// Starts its own processes with --nproc-per-node, or joins a group when the environment already
/// names a rank (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Ctrl-C once saves a checkpoint and
/// leaves with exit code 130; twice kills.
#[derive(clap::Args)]
pub(crate) struct TrainArgs {
    /// The recipe, a TOML file.
    pub(crate) config: PathBuf,
    /// Overrides a key of the recipe: --set optimizer.lr=0.1; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Processes to start on this machine.
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) nproc_per_node: u32,
    /// What moves the bytes between ranks (distributed.engine): auto is nccl on CUDA and host on the
    /// CPU.
    #[arg(long, value_name = "ENGINE", value_parser = ["auto", "nccl", "host", "local", "mpi"])]
    pub(crate) engine: Option<String>,
    /// How collectives are carried out (distributed.algorithm).
    #[arg(long, value_name = "NAME", value_parser = ["auto", "ring", "tree", "double_tree",
          "recursive_doubling", "hierarchical"])]
    pub(crate) algorithm: Option<String>,
    /// How ranks of one machine are reached (distributed.transport): auto is shared memory.
    #[arg(long, value_name = "NAME", value_parser = ["auto", "tcp"])]
    pub(crate) transport: Option<String>,
    /// Folder of the run [default: runs/<name>-<time>]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Continues from a checkpoint, a folder of checkpoints or a run folder.
    #[arg(long, value_name = "PATH")]
    pub(crate) resume: Option<PathBuf>,
    /// Prints the resolved recipe and its learning rates, and trains nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Draws the learning rate over the run (with --dry-run).
    #[arg(long, value_name = "FILE.svg", requires = "dry_run")]
    pub(crate) plot: Option<PathBuf>,
    /// Lets ranks of several machines connect without BONFIRE_TOKEN.
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl TrainArgs {
    /// All overrides of keys: those of --set, and the options that stand for a key.
    pub(crate) fn all_overrides(&self) -> Vec<String> {
        let named = [
            ("engine", &self.engine),
            ("algorithm", &self.algorithm),
            ("transport", &self.transport),
        ];
        let written = named.into_iter().filter_map(|(key, value)| {
            value.as_ref().map(|value| format!("distributed.{key}={value}"))
        });
        self.overrides.iter().cloned().chain(written).collect()
    }
}
