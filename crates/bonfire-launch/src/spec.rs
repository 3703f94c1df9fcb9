//! What one node starts in one attempt.

use crate::streams::Streams;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The program of all ranks, and how it is run.
#[derive(Clone)]
#[non_exhaustive]
pub struct WorkerSpec {
    /// Program of every worker; the launcher's own program for `bonfire train`.
    pub program: PathBuf,
    /// Arguments of every worker.
    pub args: Vec<OsString>,
    /// Variables added to the launcher's environment; those that the launcher itself sets win.
    pub env: Vec<(String, String)>,
    /// When the launcher's process started, in nanoseconds since 1970 (`BONFIRE_LAUNCH_TIME_NS`).
    pub launch_time_ns: u128,
    /// Threads of each rank (`RAYON_NUM_THREADS`, `OMP_NUM_THREADS`); `None` keeps a value that the
    /// user set, or else divides the cores between the ranks.
    pub threads_per_rank: Option<usize>,
    /// Whether each rank keeps to its share of the cores.
    pub pin_cores: bool,
    /// Where what the ranks print goes.
    pub streams: Streams,
    /// Time that the remaining ranks get after a failure to report what they see, before SIGTERM.
    pub peer_pause: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub shutdown_timeout: Duration,
}

impl WorkerSpec {
    /// Describes workers with no arguments: a pause of 3 s and a shutdown time of 30 s.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            launch_time_ns: now,
            threads_per_rank: None,
            pin_cores: false,
            streams: Streams::default(),
            peer_pause: Duration::from_secs(3),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// Leaves arguments and variables out, which may hold secrets.
impl fmt::Debug for WorkerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSpec").field("program", &self.program).finish_non_exhaustive()
    }
}

/// The place of this node's ranks among all, in one attempt.
#[derive(Clone)]
pub(crate) struct Place {
    /// Ranks on this node.
    pub(crate) nproc: usize,
    /// The first of them.
    pub(crate) first_rank: usize,
    pub(crate) world_size: usize,
    /// This node among all.
    pub(crate) node: usize,
    pub(crate) nodes: usize,
    /// Where the store is.
    pub(crate) store_host: String,
    pub(crate) store_port: u16,
    pub(crate) run_id: String,
    /// Empty without one.
    pub(crate) token: String,
    /// Attempts before this one.
    pub(crate) attempt: u32,
    pub(crate) max_restarts: u32,
}

impl Place {
    /// The rank among all of a rank of this node.
    pub(crate) fn rank(&self, local_rank: usize) -> usize {
        self.first_rank + local_rank
    }
}
