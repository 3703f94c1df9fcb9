use crate::data_sets::FetchError;
use bonfire_comm::CommError;
use bonfire_data::DataError;
use bonfire_launch::LaunchError;
use bonfire_models::ModelError;
use bonfire_trainer::TrainError;
use bonfire_trainer::checkpoint::CheckpointError;
use bonfire_trainer::config::ConfigError;
use bonfire_trainer::weights::WeightsError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// Happens when a recipe is wrong; lists everything that is.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Happens when a model cannot be made for the data.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Happens when data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Happens when a data set cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Happens when weights cannot be taken from a file or written to one.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Happens when a folder or file holds no model that can be applied.
    #[error("\"{path}\": {problem}")]
    ModelFile {
        /// The folder or file.
        path: std::path::PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// Happens when a picture cannot be read or has no use for the model.
    #[error("picture \"{path}\" cannot be used: {reason}")]
    Picture {
        /// The picture or folder.
        path: std::path::PathBuf,
        /// Why.
        reason: String,
    },
    /// Happens when some of the pictures of a command line cannot be used; the others were.
    #[error("{} of {total} pictures cannot be used:\n  {}", .problems.len(), .problems.join("\n  "))]
    Pictures {
        /// What is wrong with each of them.
        problems: Vec<String>,
        /// All pictures that there are.
        total: usize,
    },
    /// Happens when a model cannot classify what it is given.
    #[error("{problem}")]
    NotAClassifier {
        /// Why, and what to do.
        problem: String,
    },
    /// Happens when a file of the run cannot be written.
    #[error("{action} \"{path}\" failed: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: std::path::PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Happens when a trial of a batch size fails for another reason than memory.
    #[error("the trial of batch size {batch_size} failed: {reason}")]
    Trial {
        /// The size.
        batch_size: usize,
        /// What the process has said.
        reason: String,
    },
    /// Happens when flight records cannot be read.
    #[error(transparent)]
    Analyze(#[from] bonfire_comm::flight::AnalyzeError),
    /// Happens when a run's folder holds another run.
    #[error(
        "--out \"{path}\" holds another run; give a new folder, or --resume auto to continue that run"
    )]
    FolderInUse {
        /// The folder.
        path: std::path::PathBuf,
    },
    /// Happens when another process trains in a run's folder.
    #[error(
        "--out \"{path}\" is in use by process {owner}, which trains there; wait for its end, or give another folder"
    )]
    FolderBusy {
        /// The folder.
        path: std::path::PathBuf,
        /// Number of the process.
        owner: String,
    },
    /// Happens when a number type is not available on a device.
    #[error("precision.mode = \"{mode}\" is impossible on this device: {reason}")]
    Precision {
        /// The mode asked for.
        mode: String,
        /// The device's reason.
        reason: String,
    },
    /// Happens when an engine does not fit how the ranks were started.
    #[error("{setting} is impossible here: {reason}")]
    Engine {
        /// The key or option, with the engine asked for.
        setting: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// Happens when an option of the command line does not fit the others.
    #[error("{option}: {problem}")]
    Option {
        /// The option, with its value.
        option: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// Happens when collectives that were measured gave wrong results.
    #[error(
        "{rows} of {total} measurements found wrong elements (column \"wrong\"); the engine \
         computes wrongly, do not train with it"
    )]
    WrongElements {
        /// Measurements with wrong elements.
        rows: usize,
        /// All measurements.
        total: usize,
    },
    /// Happens when checkpoints are not what their checksums say.
    #[error("{damaged} of {total} checkpoints are damaged; continue from another one")]
    DamagedCheckpoints {
        /// Those that are.
        damaged: usize,
        /// All that were read.
        total: usize,
    },
    /// Happens when training fails.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Happens when ranks cannot find each other or lose one.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Happens when processes cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Happens when ranks that run as threads of this process fail.
    #[error("{0}")]
    Threads(String),
}

impl CliError {
    /// Whether every rank finds the same error by itself, so that one of them saying it is enough.
    pub(crate) fn is_known_to_all(&self) -> bool {
        match self {
            Self::Config(_) | Self::Model(_) | Self::Data(_) | Self::Precision { .. } => true,
            Self::Engine { .. } | Self::Option { .. } | Self::WrongElements { .. } => true,
            Self::Comm(CommError::EngineUnavailable { .. } | CommError::Poisoned { .. }) => true,
            Self::Train(error) if error.is_of_another_rank() => true,
            Self::Train(error) => matches!(
                error,
                TrainError::Config(_)
                    | TrainError::RanksDisagree { .. }
                    | TrainError::TooFewSamples { .. }
                    | TrainError::NoSteps { .. }
                    | TrainError::RankWithoutSamples { .. }
                    | TrainError::LossNotFinite { .. }
                    | TrainError::WarmupTooLong { .. }
                    | TrainError::NothingToWatch { .. }
                    | TrainError::NothingToMonitor { .. }
                    | TrainError::CallbackNames { .. }
                    | TrainError::Setting { .. }
                    | TrainError::Checkpoint(CheckpointError::Configuration { .. })
            ),
            _ => false,
        }
    }
}
