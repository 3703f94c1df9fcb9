use clap::Subcommand;
use std::path::PathBuf;

/// Looks into checkpoints, checks them, makes models of them, and removes old ones
#[derive(Subcommand)]
pub(crate) enum CheckpointCommand {
    Inspect(InspectArgs),
    Verify(VerifyArgs),
    Export(ExportArgs),
    Average(AverageArgs),
    Prune(PruneArgs),
}

/// Says what a checkpoint is of and what is in it
///
/// Of a run or a folder of checkpoints all are listed, and the newest is shown.
#[derive(clap::Args)]
pub(crate) struct InspectArgs {
    /// A checkpoint, a folder of checkpoints, or the folder of a run.
    pub(crate) path: PathBuf,
    /// Lists every tensor with its shape, type and size.
    #[arg(long)]
    pub(crate) tensors: bool,
}

/// Reads every byte of checkpoints and compares it with their checksums
///
/// Leaves with code 1 if one of them is damaged.
#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    /// Checkpoints, folders of checkpoints, folders of runs.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

/// Makes a model folder of a checkpoint, for `bonfire predict`, `evaluate` and `weights export`
#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// A checkpoint; or a folder of checkpoints or of a run, whose newest sound one is taken.
    pub(crate) path: PathBuf,
    /// Folder to make.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// An average of the weights that the run keeps, instead of the weights: ema or swa.
    #[arg(long, value_name = "NAME")]
    pub(crate) variant: Option<String>,
    /// What model it is of [default: the model.toml of the run that the checkpoint lies in]
    #[arg(long, value_name = "MODEL.toml")]
    pub(crate) model: Option<PathBuf>,
}

/// Makes a model folder of the mean of several checkpoints' weights
#[derive(clap::Args)]
pub(crate) struct AverageArgs {
    /// Checkpoints; or a folder of checkpoints or of a run, for all that it has.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Takes the newest N of all only, by their step.
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<std::num::NonZeroUsize>,
    /// Folder to make.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// What model they are of [default: the model.toml of the run that the last one lies in]
    #[arg(long, value_name = "MODEL.toml")]
    pub(crate) model: Option<PathBuf>,
}

/// Removes old checkpoints of a run that has ended, and what interrupted saves have left
///
/// The best one stays, if the run has kept it.
#[derive(clap::Args)]
pub(crate) struct PruneArgs {
    /// A folder of checkpoints, or the folder of a run.
    pub(crate) path: PathBuf,
    /// Newest checkpoints that stay.
    #[arg(long, value_name = "N")]
    pub(crate) keep_last: std::num::NonZeroUsize,
    /// Says what would be removed, and removes nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}
