//! The command line and environment of one worker.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::orphan;
use super::spec::WorkerSpec;

const THREADS: &str = "RAYON_NUM_THREADS";

/// Describes the process of `rank`, in a process group of its own.
///
/// Rank 0 writes to the launcher's own output, so that its progress bar sees the terminal; the
/// output of the others is piped.
pub(super) fn worker_command(spec: &WorkerSpec, rank: usize, error_file: &Path) -> Command {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).process_group(0);
    set_environment(&mut command, spec, rank, error_file);
    if rank > 0 {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    } else if std::io::stdin().is_terminal() {
        // Outside the terminal's foreground group, a read would stop the process.
        command.stdin(Stdio::null());
    }
    orphan::die_with_parent(&mut command);
    command
}

fn set_environment(command: &mut Command, spec: &WorkerSpec, rank: usize, error_file: &Path) {
    let added = spec.env.iter().map(|(name, value)| (name, value));
    command.envs(added);
    let world_size = spec.nproc.to_string();
    command
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("GROUP_RANK", "0")
        .env("WORLD_SIZE", &world_size)
        .env("LOCAL_WORLD_SIZE", &world_size)
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", spec.master_port.to_string())
        .env("BONFIRE_RUN_ID", &spec.run_id)
        .env("BONFIRE_RESTART_COUNT", "0")
        .env("BONFIRE_ERROR_FILE", error_file)
        .env("BONFIRE_LAUNCH_TIME_NS", spec.launch_time_ns.to_string());
    if !spec.token.is_empty() {
        command.env("BONFIRE_TOKEN", &spec.token);
    }
    if let Some(threads) = threads(spec) {
        command.env(THREADS, threads.to_string());
    }
}

/// Returns the threads of each rank, or `None` to keep what the user set.
fn threads(spec: &WorkerSpec) -> Option<usize> {
    let chosen_by_user =
        std::env::var_os(THREADS).is_some() || spec.env.iter().any(|(name, _)| name == THREADS);
    match spec.threads_per_rank {
        Some(threads) => Some(threads.max(1)),
        None if chosen_by_user => None,
        None => {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            Some((cores / spec.nproc.max(1)).max(1))
        }
    }
}
