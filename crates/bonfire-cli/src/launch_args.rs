//! The options of torchrun, by which processes are started.

use bonfire_launch::{NodeCount, ProcessCount, StdByRank};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Starts a program once a rank, on one or many machines, and watches it: torchrun for any program
///
/// The ranks read RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT, as
/// bonfire::init does. One failure ends all of them; the exit code is that of the rank that failed first.
/// Every option may also be set as BONFIRE_<OPTION>, in upper case. On several machines set BONFIRE_TOKEN to
/// the same secret on each: export BONFIRE_TOKEN=$(openssl rand -hex 16).
#[derive(clap::Args)]
pub(crate) struct LaunchArgs {
    #[command(flatten)]
    pub(crate) options: LaunchOptions,
    /// Lets nodes connect without BONFIRE_TOKEN, on a network that is trusted.
    #[arg(long, env = "BONFIRE_INSECURE", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) insecure: bool,
    /// The program and its arguments, behind --.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

/// Options of everything that starts ranks.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Starting ranks")]
pub(crate) struct LaunchOptions {
    /// Processes on this node: a number, gpu (one a GPU), cpu (one a core), or auto (gpu, else cpu).
    #[arg(
        long,
        alias = "nproc_per_node",
        env = "BONFIRE_NPROC_PER_NODE",
        default_value = "1",
        value_name = "N"
    )]
    pub(crate) nproc_per_node: ProcessCount,
    /// Nodes: a number, or a range, between whose bounds nodes may leave and join while the run lasts.
    #[arg(long, env = "BONFIRE_NNODES", default_value = "1", value_name = "N|MIN:MAX")]
    pub(crate) nnodes: NodeCount,
    /// Place of this node, where every node is told its place; the first hosts the store.
    #[arg(
        long,
        alias = "node_rank",
        env = "BONFIRE_NODE_RANK",
        default_value_t = 0,
        value_name = "K"
    )]
    pub(crate) node_rank: usize,
    /// Address of the first node.
    #[arg(
        long,
        alias = "master_addr",
        env = "BONFIRE_MASTER_ADDR",
        default_value = "127.0.0.1",
        value_name = "HOST"
    )]
    pub(crate) master_addr: String,
    /// Port of the store there [default: a free one on one node, else 29500]
    #[arg(long, alias = "master_port", env = "BONFIRE_MASTER_PORT", value_name = "PORT")]
    pub(crate) master_port: Option<u16>,
    /// Where nodes meet that take their places by arrival; the port is 29400 if it is left out.
    #[arg(long, alias = "rdzv_endpoint", env = "BONFIRE_RDZV_ENDPOINT", value_name = "HOST[:PORT]",
          conflicts_with_all = ["master_addr", "master_port", "node_rank", "standalone"])]
    pub(crate) rdzv_endpoint: Option<String>,
    /// How nodes meet: static (places are given) or c10d (by arrival) [default: c10d with --rdzv-endpoint]
    #[arg(long, alias = "rdzv_backend", env = "BONFIRE_RDZV_BACKEND", value_name = "NAME", value_parser = ["static", "c10d"])]
    pub(crate) rdzv_backend: Option<String>,
    /// Name of the run, the same on all nodes.
    #[arg(
        long,
        alias = "rdzv_id",
        env = "BONFIRE_RDZV_ID",
        default_value = "none",
        value_name = "ID"
    )]
    pub(crate) rdzv_id: String,
    /// Times of the meeting in seconds: join_timeout (600), last_call_timeout (30).
    #[arg(long, alias = "rdzv_conf", env = "BONFIRE_RDZV_CONF", default_value = "", value_name = "KEY=VALUE,...", value_parser = read_times)]
    pub(crate) rdzv_conf: MeetingTimes,
    /// One node on a free port, which is what happens without any of these options.
    #[arg(long, env = "BONFIRE_STANDALONE", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) standalone: bool,
    /// Restarts of all ranks after a failure.
    #[arg(
        long,
        alias = "max_restarts",
        env = "BONFIRE_MAX_RESTARTS",
        default_value_t = 0,
        value_name = "N"
    )]
    pub(crate) max_restarts: u32,
    /// Seconds before the first restart; they double up to 60.
    #[arg(long, alias = "restart_backoff", env = "BONFIRE_RESTART_BACKOFF", default_value = "1", value_name = "SECONDS", value_parser = read_seconds)]
    pub(crate) restart_backoff: Duration,
    /// Seconds between two looks at the other nodes.
    #[arg(long, alias = "monitor_interval", env = "BONFIRE_MONITOR_INTERVAL", default_value = "0.1", value_name = "SECONDS", value_parser = read_seconds)]
    pub(crate) monitor_interval: Duration,
    /// Seconds from SIGTERM to SIGKILL.
    #[arg(long, alias = "shutdown_timeout", env = "BONFIRE_SHUTDOWN_TIMEOUT", default_value = "30", value_name = "SECONDS", value_parser = read_seconds)]
    pub(crate) shutdown_timeout: Duration,
    /// Folder of what the ranks print: DIR/ID/attempt_0/3/stderr.log.
    #[arg(long, alias = "log_dir", env = "BONFIRE_LOG_DIR", value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,
    /// What goes to the logs instead of the console: 0 nothing, 1 standard output, 2 standard error, 3 both;
    /// or by local rank, 0:1,1:3.
    #[arg(long, short = 'r', env = "BONFIRE_REDIRECTS", default_value = "0", value_name = "STD")]
    pub(crate) redirects: StdByRank,
    /// What goes to the logs and to the console.
    #[arg(long, short = 't', env = "BONFIRE_TEE", default_value = "0", value_name = "STD")]
    pub(crate) tee: StdByRank,
    /// Local ranks whose lines are shown: 0,1 [default: all]
    #[arg(
        long,
        alias = "local_ranks_filter",
        env = "BONFIRE_LOCAL_RANKS_FILTER",
        value_delimiter = ',',
        value_name = "K,..."
    )]
    pub(crate) local_ranks_filter: Option<Vec<usize>>,
    /// Keeps each rank to its share of the cores.
    #[arg(long, alias = "pin_cores", env = "BONFIRE_PIN_CORES", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) pin_cores: bool,
}

impl LaunchOptions {
    /// Ranks on this node.
    pub(crate) fn nproc(&self) -> Result<usize, crate::CliError> {
        self.nproc_per_node.resolve().map_err(|problem| crate::CliError::Option {
            option: format!("--nproc-per-node {}", self.nproc_per_node),
            problem,
        })
    }

    /// Whether even a single rank needs somebody who watches it.
    pub(crate) fn asks_for_a_launcher(&self) -> bool {
        self.is_among_nodes() || self.max_restarts > 0 || self.log_dir.is_some() || self.pin_cores
    }

    /// Whether the run may have other nodes.
    pub(crate) fn is_among_nodes(&self) -> bool {
        !self.standalone
            && (self.nnodes != NodeCount::ONE
                || self.rdzv_endpoint.is_some()
                || self.master_port.is_some())
    }
}

/// Times of a meeting of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeetingTimes {
    pub(crate) join: Duration,
    pub(crate) last_call: Duration,
}

fn read_times(text: &str) -> Result<MeetingTimes, String> {
    let mut times =
        MeetingTimes { join: Duration::from_secs(600), last_call: Duration::from_secs(30) };
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(format!("{pair:?} is no key=value"));
        };
        match key.trim() {
            "join_timeout" | "timeout" => times.join = read_seconds(value)?,
            "last_call_timeout" => times.last_call = read_seconds(value)?,
            key => {
                return Err(format!(
                    "there is no key {key:?}; there are join_timeout and last_call_timeout"
                ));
            }
        }
    }
    Ok(times)
}

fn read_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_meeting_are_read() {
        let times = read_times("join_timeout=5, last_call_timeout=0.5").unwrap();
        assert_eq!(
            (times.join, times.last_call),
            (Duration::from_secs(5), Duration::from_millis(500))
        );
        assert_eq!(read_times("").unwrap().join, Duration::from_secs(600));
        for wrong in ["join_timeout", "other=1", "join_timeout=-1", "join_timeout=x"] {
            assert!(read_times(wrong).is_err(), "{wrong}");
        }
    }
}
