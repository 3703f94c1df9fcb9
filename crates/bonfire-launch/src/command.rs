//! The command line and environment of one worker.

use crate::orphan;
use crate::spec::{Place, WorkerSpec};
use crate::streams::{Console, Stream};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names of the variables for the number of threads.
const THREADS: [&str; 2] = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"];

/// What becomes of one stream of a rank.
pub(crate) enum Way {
    /// The launcher's own, or a file: nobody has to copy it.
    Direct(Stdio),
    /// Copied line by line, to the console and to a file, if any.
    Piped(Option<File>),
}

impl Way {
    /// Decides for a stream of a rank.
    ///
    /// # Errors
    /// When a log cannot be written.
    fn of(spec: &WorkerSpec, place: &Place, local_rank: usize, stream: Stream) -> io::Result<Self> {
        let streams = &spec.streams;
        let log = || -> io::Result<Option<File>> {
            let Some(folder) = &streams.logs else { return Ok(None) };
            let rank = place.rank(local_rank);
            let folder = folder.join(format!("attempt_{}/{rank}", place.attempt));
            std::fs::create_dir_all(&folder)?;
            File::create(folder.join(stream.file_name())).map(Some)
        };
        let tees = streams.tee.has(local_rank, stream);
        if streams.redirects.has(local_rank, stream) && !tees {
            return Ok(Self::Direct(log()?.map_or_else(Stdio::null, Stdio::from)));
        }
        let log = if tees { log()? } else { None };
        let is_first =
            streams.console == Console::FirstHasTheTerminal && place.rank(local_rank) == 0;
        Ok(match (streams.is_shown(local_rank), log) {
            (false, log) => Self::Direct(log.map_or_else(Stdio::null, Stdio::from)),
            (true, None) if is_first => Self::Direct(Stdio::inherit()),
            (true, log) => Self::Piped(log),
        })
    }
}

/// A worker that is ready to be started, and the logs that its streams are copied to.
pub(crate) struct Prepared {
    pub(crate) command: Command,
    pub(crate) out: Option<Option<File>>,
    pub(crate) err: Option<Option<File>>,
}

/// Describes the process of a rank, in a process group of its own.
///
/// # Errors
/// When a log cannot be written.
pub(crate) fn prepare(
    spec: &WorkerSpec,
    place: &Place,
    local_rank: usize,
    error_file: &Path,
) -> io::Result<Prepared> {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).process_group(0);
    set_environment(&mut command, spec, place, local_rank, error_file);
    // Outside the terminal's foreground group a read would stop the process.
    if place.rank(local_rank) > 0 || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    let (out, stdio) = split(Way::of(spec, place, local_rank, Stream::Out)?);
    command.stdout(stdio);
    let (err, stdio) = split(Way::of(spec, place, local_rank, Stream::Err)?);
    command.stderr(stdio);
    let cores = spec.pin_cores.then(|| crate::cores::share(local_rank, place.nproc)).flatten();
    orphan::die_with_parent(&mut command, cores);
    Ok(Prepared { command, out, err })
}

fn split(way: Way) -> (Option<Option<File>>, Stdio) {
    match way {
        Way::Direct(stdio) => (None, stdio),
        Way::Piped(log) => (Some(log), Stdio::piped()),
    }
}

fn set_environment(
    command: &mut Command,
    spec: &WorkerSpec,
    place: &Place,
    local_rank: usize,
    error_file: &Path,
) {
    let added = spec.env.iter().map(|(name, value)| (name, value));
    command.envs(added);
    let port = place.store_port.to_string();
    command
        .env("RANK", place.rank(local_rank).to_string())
        .env("LOCAL_RANK", local_rank.to_string())
        .env("GROUP_RANK", place.node.to_string())
        .env("GROUP_WORLD_SIZE", place.nodes.to_string())
        .env("WORLD_SIZE", place.world_size.to_string())
        .env("LOCAL_WORLD_SIZE", place.nproc.to_string())
        .env("MASTER_ADDR", &place.store_host)
        .env("MASTER_PORT", &port)
        .env("BONFIRE_STORE_PORT", &port)
        .env("BONFIRE_STORE_HOSTED", "1")
        .env("BONFIRE_RUN_ID", &place.run_id)
        .env("BONFIRE_RESTART_COUNT", place.attempt.to_string())
        .env("BONFIRE_MAX_RESTARTS", place.max_restarts.to_string())
        .env("BONFIRE_ERROR_FILE", error_file)
        .env("BONFIRE_LAUNCH_TIME_NS", spec.launch_time_ns.to_string());
    match place.token.as_str() {
        "" => command.env("BONFIRE_INSECURE", "1"),
        token => command.env("BONFIRE_TOKEN", token),
    };
    for name in THREADS {
        if let Some(threads) = threads(spec, place.nproc, name) {
            command.env(name, threads.to_string());
        }
    }
}

/// The threads of each rank by a variable, or `None` to keep what the user set.
fn threads(spec: &WorkerSpec, nproc: usize, name: &str) -> Option<usize> {
    let chosen_by_user =
        std::env::var_os(name).is_some() || spec.env.iter().any(|(added, _)| added == name);
    match spec.threads_per_rank {
        Some(threads) => Some(threads.max(1)),
        None if chosen_by_user => None,
        None => {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            Some((cores / nproc.max(1)).max(1))
        }
    }
}

/// The variables that this launcher sets for want of the user's, in words; `None` where it sets none.
pub(crate) fn tell_threads(spec: &WorkerSpec, nproc: usize) -> Option<String> {
    let set = |name: &&str| threads(spec, nproc, name).map(|threads| format!("{name}={threads}"));
    let words: Vec<String> = THREADS.iter().filter_map(set).collect();
    (!words.is_empty()).then(|| words.join(", "))
}
