//! Why workers could not be started.

use bonfire_comm::CommError;
use nix::sys::signal::Signal;
use std::io;
use std::path::PathBuf;

/// Happens when workers could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Happens when no worker was asked for.
    #[error("the number of workers is 0; ask for 1 or more")]
    NoRanks,
    /// Happens when the handlers for forwarded signals could not be installed.
    #[error("cannot install signal handlers: {source}")]
    Signals {
        /// What the system said.
        source: io::Error,
    },
    /// Happens when the system gives no random numbers.
    #[error("cannot read /dev/urandom: {source}")]
    Random {
        /// What the system said.
        source: io::Error,
    },
    /// Happens when the folder for the workers' error files could not be made.
    #[error(
        "cannot make the folder {path} for error files: {source}; set TMPDIR to a writable folder"
    )]
    ErrorFolder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Happens when the store of the run could not be made or reached.
    #[error("{source}")]
    Store {
        /// What went wrong.
        #[from]
        source: CommError,
    },
    /// Happens when nodes do not fit together, or too few came.
    #[error("{reason}")]
    Meeting {
        /// Why they did not form a run.
        reason: String,
    },
    /// Happens when the user ends the launcher while it waits for other nodes.
    #[error("stopped by {signal} while waiting for the other nodes")]
    Interrupted {
        /// The signal.
        signal: Signal,
    },
    /// Happens when a worker, or the thread that reads its output, could not be started.
    #[error("rank {rank}: cannot start {program}: {source}")]
    Spawn {
        /// The rank that could not be started.
        rank: usize,
        /// The program of the worker.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
