//! What to start.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The workers of one machine: what to run, how often, and how to end it.
#[derive(Clone)]
#[non_exhaustive]
pub struct WorkerSpec {
    /// Program of every worker; the launcher's own program for `bonfire train`.
    pub program: PathBuf,
    /// Arguments of every worker.
    pub args: Vec<OsString>,
    /// Number of workers: the ranks `0..nproc` of a world of that size.
    pub nproc: usize,
    /// Variables added to the launcher's environment; those that the launcher itself sets win.
    pub env: Vec<(String, String)>,
    /// Port of the store on 127.0.0.1, which whoever hosts the store has chosen (`MASTER_PORT`).
    pub master_port: u16,
    /// Identifier of the run (`BONFIRE_RUN_ID`).
    pub run_id: String,
    /// Secret that ranks show to the store (`BONFIRE_TOKEN`); empty sets none.
    pub token: String,
    /// When the launcher's process started, in nanoseconds since 1970 (`BONFIRE_LAUNCH_TIME_NS`).
    pub launch_time_ns: u128,
    /// Threads of each rank (`RAYON_NUM_THREADS`); `None` keeps a value that the user set, or
    /// else divides the cores between the ranks.
    pub threads_per_rank: Option<usize>,
    /// How the lines of ranks above 0 are labelled.
    pub labels: Labels,
    /// Time that the remaining ranks get after a failure to report what they see, before SIGTERM.
    pub peer_pause: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// How a line of a rank says which rank it is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Labels {
    /// By `[rank 3]` before it.
    #[default]
    Words,
    /// As a JSON object, which knows its rank; what is none becomes the `message` of one.
    Json,
}

impl WorkerSpec {
    /// Describes `nproc` workers with no arguments: a run identifier made from the process and
    /// the time, no token, a pause of 3 s and a grace time of 30 s.
    pub fn new(program: impl Into<PathBuf>, nproc: usize, master_port: u16) -> Self {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        Self {
            program: program.into(),
            args: Vec::new(),
            nproc,
            env: Vec::new(),
            master_port,
            run_id: format!("{:x}-{now:x}", std::process::id()),
            token: String::new(),
            launch_time_ns: now,
            threads_per_rank: None,
            labels: Labels::Words,
            peer_pause: Duration::from_secs(3),
            grace: Duration::from_secs(30),
        }
    }
}

/// Leaves the token and the added variables out, which may hold secrets.
impl fmt::Debug for WorkerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSpec")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("nproc", &self.nproc)
            .field("master_port", &self.master_port)
            .field("run_id", &self.run_id)
            .finish_non_exhaustive()
    }
}
