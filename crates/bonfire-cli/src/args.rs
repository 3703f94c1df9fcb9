use crate::bench::CollectivesArgs;
use crate::checkpoints::CheckpointCommand;
use crate::data_sets::DataCommand;
use crate::launch_args::{LaunchArgs, LaunchOptions};
use crate::voice::VoiceArgs;
use bonfire_trainer::Resume;
use clap::{Parser, Subcommand};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Trains Burn models on one or many processes.
#[derive(Parser)]
#[command(name = "bonfire", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) voice: VoiceArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Train(Box<TrainArgs>),
    Launch(Box<LaunchArgs>),
    Predict(PredictArgs),
    Evaluate(EvaluateArgs),
    #[command(subcommand)]
    Weights(Weights),
    New(NewArgs),
    Analyze(AnalyzeArgs),
    #[command(subcommand)]
    Bench(Bench),
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    #[command(subcommand)]
    Data(DataCommand),
    #[command(subcommand)]
    Config(ConfigCommand),
    LrFind(LrFindArgs),
    BatchFind(BatchFindArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Explains recipes and checks them
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Prints every key with its type, default and meaning, as Markdown
    Reference,
    /// Prints the JSON Schema of recipes, by which editors complete and check them
    Schema,
    Check(CheckArgs),
}

/// Tells all that is wrong with recipes, each problem at its place; exit code 1 if anything is
///
/// Data and weights are not opened: bonfire train --dry-run does that too.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// The recipes, TOML files.
    #[arg(required = true, value_name = "RECIPE")]
    pub(crate) recipes: Vec<PathBuf>,
    /// Overrides a key of the recipes: --set optimizer.lr=0.1; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Ranks of the run that they are checked for.
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) nproc_per_node: u32,
}

/// Tries rising learning rates, and suggests the one at which the loss falls fastest
///
/// One process trains the recipe's model from its beginning, the rate growing by the same factor in every
/// step, until the last or until the loss explodes. Prints the curve as CSV. The rate is for the number of
/// images that a step of one process has: give data.global_batch_size that of the run.
#[derive(clap::Args)]
pub(crate) struct LrFindArgs {
    /// The recipe, a TOML file.
    pub(crate) config: PathBuf,
    /// Overrides a key of the recipe: --set data.batch_size=256; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// The first rate.
    #[arg(long, default_value_t = 1e-8, value_name = "LR")]
    pub(crate) min_lr: f64,
    /// The last one.
    #[arg(long, default_value_t = 1.0, value_name = "LR")]
    pub(crate) max_lr: f64,
    /// Steps from the one to the other.
    #[arg(long, default_value_t = 100, value_name = "STEPS",
          value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) num_training: u64,
    /// Draws the curve.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// Tries growing batch sizes, and suggests the one beyond which training is no faster
///
/// Every size trains a few steps of the recipe in a process of its own, which writes nothing. The search ends
/// when two sizes in a row bring no speed, when memory ends, or when the data do. Prints the figures as CSV.
/// Memory is main memory, of all ranks; that of a GPU ends the search when a size does not go into it.
#[derive(clap::Args)]
pub(crate) struct BatchFindArgs {
    /// The recipe, a TOML file.
    pub(crate) config: PathBuf,
    /// Overrides a key of the recipe: --set precision.mode=bf16; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Ranks on this machine; the sizes are for each of them.
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) nproc_per_node: u32,
    /// The first size.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = read_size)]
    pub(crate) init_val: usize,
    /// The largest that is tried.
    #[arg(long, default_value_t = 65536, value_name = "N", value_parser = read_size)]
    pub(crate) max_val: usize,
    /// Steps that are timed at every size, after one that is not.
    #[arg(long, default_value_t = 5, value_name = "STEPS",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) steps_per_trial: u32,
    /// Main memory that may be used [default: what is free]
    #[arg(long, value_name = "GIB", value_parser = read_gib)]
    pub(crate) memory_limit: Option<f64>,
    /// Goes on while memory lasts, and suggests the largest size that fits.
    #[arg(long)]
    pub(crate) largest: bool,
}

/// Reads an amount of memory.
fn read_gib(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gib) if gib > 0.0 && gib.is_finite() => Ok(gib),
        Ok(_) => Err("must be above 0".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads a batch size.
fn read_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        size => size.map_err(|error: std::num::ParseIntError| error.to_string()),
    }
}

/// Prints completions of this command line for a shell
///
/// For bash: bonfire completions bash > ~/.local/share/bash-completion/completions/bonfire
#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// Prints the man page, or writes those of all commands
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// Folder in which to write bonfire.1, bonfire-train.1 and so on.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Says what pictures show, as CSV: path, class, probability
///
/// Pictures are scaled until they cover the model's image size, and their middle is cut out. Those that
/// cannot be used are told together at the end, with exit code 1.
#[derive(clap::Args)]
pub(crate) struct PredictArgs {
    /// The folder of a run, or another with model.safetensors and model.toml.
    pub(crate) model: PathBuf,
    /// Pictures (png, jpeg, webp), files of MNIST's images (IDX), and folders of both.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Classes to print for each picture, the likeliest first.
    #[arg(long, default_value = "1", value_name = "K")]
    pub(crate) top: NonZeroUsize,
    /// An average of the weights that the run has kept: ema or swa.
    #[arg(long, value_name = "NAME")]
    pub(crate) variant: Option<String>,
    /// Pictures that the model sees at once.
    #[arg(long, default_value = "32", value_name = "N")]
    pub(crate) batch_size: NonZeroUsize,
}

/// Computes loss, accuracy, and the accuracy of every class on test images
#[derive(clap::Args)]
pub(crate) struct EvaluateArgs {
    /// The folder of a run, or another with model.safetensors and model.toml.
    pub(crate) model: PathBuf,
    /// A recipe, whose test images are taken, or the folder of a data set.
    #[arg(value_name = "RECIPE_OR_DATA")]
    pub(crate) data: PathBuf,
    /// Overrides a key of the recipe: --set data.path=DIR; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// An average of the weights that the run has kept: ema or swa.
    #[arg(long, value_name = "NAME")]
    pub(crate) variant: Option<String>,
    /// Images that the model sees at once.
    #[arg(long, default_value = "64", value_name = "N")]
    pub(crate) batch_size: NonZeroUsize,
}

/// Writes a package with a model of its own, which builds and trains
#[derive(clap::Args)]
pub(crate) struct NewArgs {
    /// Folder to make; its name becomes the package's.
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Checkout of Bonfire to depend on [default: the one that this program was built from]
    #[arg(long, value_name = "WORKSPACE")]
    pub(crate) path: Option<PathBuf>,
}

/// Takes weights from PyTorch's files, or writes such a file
#[derive(Subcommand)]
pub(crate) enum Weights {
    Import(ImportArgs),
    Export(ExportArgs),
}

/// Makes a model folder of a file of weights
#[derive(clap::Args)]
pub(crate) struct ImportArgs {
    /// The weights: .safetensors, .pt or .pth, by PyTorch's names or by module path.
    pub(crate) file: PathBuf,
    /// What model they are of: a model.toml, as the folder of every run has one.
    #[arg(long, value_name = "MODEL.toml")]
    pub(crate) model: PathBuf,
    /// Folder to make.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Takes all but the weights that give the scores of the classes, which begin anew.
    #[arg(long)]
    pub(crate) reset_head: bool,
}

/// Writes the weights of a model by PyTorch's names, as safetensors
#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// The folder of a run, or another with model.safetensors and model.toml.
    pub(crate) model: PathBuf,
    /// File to write.
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) out: PathBuf,
    /// An average of the weights that the run has kept: ema or swa.
    #[arg(long, value_name = "NAME")]
    pub(crate) variant: Option<String>,
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
#[derive(clap::Args, Clone)]
pub(crate) struct TrainArgs {
    /// The recipe, a TOML file.
    pub(crate) config: PathBuf,
    /// Overrides a key of the recipe: --set optimizer.lr=0.1; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Where to train (train.device): cpu, or cuda, where rank r of a machine has its GPU r.
    #[arg(long, value_name = "DEVICE", value_parser = ["cpu", "cuda"])]
    pub(crate) device: Option<String>,
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
    /// What to continue from: a checkpoint, or the newest sound one of a folder of checkpoints or a
    /// run folder. With auto the newest one in --out, or from the beginning if there is none, so that
    /// one command starts a run and restarts it. (A folder of that name is ./auto.)
    #[arg(long, value_name = "auto|never|PATH", default_value = "never", value_parser = read_resume)]
    pub(crate) resume: Resume,
    /// The summary.json of another run, with which the speed is compared: speed-up and scaling efficiency in
    /// the table and in summary.json.
    #[arg(long, value_name = "SUMMARY.json")]
    pub(crate) baseline: Option<PathBuf>,
    /// Where a trial of batch-find leaves its figures.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) trial_record: Option<PathBuf>,
    /// Prints the resolved recipe and its learning rates, and trains nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Draws the learning rate over the run (with --dry-run).
    #[arg(long, value_name = "FILE.svg", requires = "dry_run")]
    pub(crate) plot: Option<PathBuf>,
    /// Lets ranks of several machines connect without BONFIRE_TOKEN.
    #[arg(long, env = "BONFIRE_INSECURE", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) launch: LaunchOptions,
}

impl TrainArgs {
    /// What is asked of ranks that are started for another time: to go on with what there is.
    pub(crate) fn after(&self, restarts: u32) -> Self {
        let has_saved = |out: &PathBuf| {
            std::fs::read_dir(out.join("checkpoints")).is_ok_and(|mut saved| saved.next().is_some())
        };
        let resume = match (restarts, &self.out, &self.resume) {
            // What the run was begun from stands until it has saved something itself.
            (1.., Some(out), Resume::From(path)) if !has_saved(out) => Resume::From(path.clone()),
            (1.., Some(_), _) => Resume::Auto,
            (_, _, resume) => resume.clone(),
        };
        Self { resume, ..self.clone() }
    }

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
        let device = self.device.iter().map(|value| format!("train.device={value}"));
        self.overrides.iter().cloned().chain(written).chain(device).collect()
    }
}

/// Reads what a run continues from.
#[allow(clippy::unnecessary_wraps, reason = "the form that clap asks for")]
fn read_resume(text: &str) -> Result<Resume, String> {
    Ok(match text {
        "auto" => Resume::Auto,
        "never" => Resume::Never,
        path => Resume::From(path.into()),
    })
}
