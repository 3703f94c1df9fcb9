//! Starts the ranks of one machine as processes, watches them, and leaves none behind.
//!
//! [`run_workers`] starts a [`WorkerSpec`]'s program once a rank and returns when every rank has
//! ended. The rules, in the order in which they matter:
//!
//! - **One failure ends the run.** When a rank exits with an error or is killed, the others get a
//!   pause to report what they see, then SIGTERM, and after a grace time SIGKILL.
//! - **The root cause is named.** Ranks that fail in the wake of another are not reported: the
//!   earliest failure is, and a rank killed by a signal goes before ranks that exited with an
//!   error at nearly the same time, since those most likely report its loss.
//! - **Signals reach the ranks.** SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are
//!   forwarded (SIGHUP unless the launcher was started to ignore it, as `nohup` does), since a terminal's Ctrl-C reaches only the launcher's own process group. After a
//!   forwarded signal (or exit code 75: saved, asks to be requeued), ranks that stop orderly are
//!   waited for without a limit: a checkpoint may take long. A second SIGINT kills them.
//! - **Nothing is left behind.** A rank is a process group; what remains of a group when its
//!   first process has ended is killed. Ranks die with the launcher, even if it dies of SIGKILL.

mod cause;
mod command;
mod error;
mod error_files;
mod orphan;
mod output;
mod spec;
mod supervise;
#[cfg(test)]
mod tests;
mod worker;

use crate::signals::is_ignored;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

pub use cause::{Exit, LaunchOutcome, RankFailure};
pub use error::LaunchError;
pub use spec::{Labels, WorkerSpec};

/// Runs one process a rank and returns when all have ended.
///
/// The calling thread must not end before: the kernel kills a worker when the thread that
/// started it ends. From the first call on, the process no longer ends by itself on the forwarded
/// signals.
///
/// # Errors
/// Happens when the workers could not be started; none is left running then. Ranks that fail are
/// no error but a [`LaunchOutcome`].
pub fn run_workers(spec: WorkerSpec) -> Result<LaunchOutcome, LaunchError> {
    let mut forwarded = vec![SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2];
    if !is_ignored(SIGHUP) {
        forwarded.push(SIGHUP);
    }
    let mut signals = Signals::new(forwarded).map_err(|source| LaunchError::Signals { source })?;
    launch(&spec, &mut || signals.pending().collect())
}

/// Runs the workers; `signals` returns those that arrived since it was last asked.
fn launch(
    spec: &WorkerSpec,
    signals: &mut dyn FnMut() -> Vec<i32>,
) -> Result<LaunchOutcome, LaunchError> {
    let files = error_files::ErrorFiles::create(&spec.run_id)?;
    let workers = worker::Workers::start(spec, &files)?;
    let ended = supervise::supervise(workers, spec, signals);
    Ok(LaunchOutcome::new(ended, spec.nproc, &files))
}
