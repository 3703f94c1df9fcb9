use super::Difference;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Happens when a path holds no complete checkpoint.
    #[error(
        "no complete checkpoint at \"{path}\"; give a folder with a manifest.json, a folder of \
         such folders, or a run folder"
    )]
    NotFound {
        /// The path given.
        path: PathBuf,
    },
    /// Happens when a file cannot be read or written.
    #[error("{action} \"{path}\" failed: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Happens when a file is not what the manifest says: it was damaged or changed.
    #[error(
        "\"{path}\" is damaged: {what} is {got}, the manifest says {expected}; use another \
         checkpoint"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Size or checksum.
        what: &'static str,
        /// What the manifest says.
        expected: String,
        /// What the file has.
        got: String,
    },
    /// Happens when a file cannot be understood.
    #[error("\"{path}\" is not a valid {kind}: {reason}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Happens when a checkpoint is another run's: of another model, on other data, from another seed.
    #[error("the checkpoint is not one of this run: it {}", list(.differences))]
    Configuration {
        /// What makes it another run.
        differences: Vec<Difference>,
    },
    /// Happens when a model that is no use any more would be saved.
    #[error(
        "\"{tensor}\" has values that are no numbers after step {step}: that state is not saved, the checkpoints before it stay"
    )]
    NotANumber {
        /// First tensor with such a value.
        tensor: String,
        /// Optimizer steps taken.
        step: u64,
    },
    /// Happens when a value cannot be encoded.
    #[error("encoding {what} failed: {reason}")]
    Encode {
        /// What was encoded.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl CheckpointError {
    /// Whether there was no room.
    pub(super) fn is_full_disk(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if [StorageFull, QuotaExceeded].contains(&source.kind()))
    }

    pub(super) fn io(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}

/// Joins differences, one a line.
fn list(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("\nit ")
}
