//! Ranks that a program starts itself.

use crate::{Context, TrainError, init, limit_threads};
use bonfire_comm::{RankEnv, local};
use bonfire_launch::{Launch, WorkerSpec, launch};

/// Runs `f` in a thread for each of `ranks` ranks (engine `local`), and returns what they returned, in their
/// order.
///
/// A rank that panics or returns early ends the others' collectives with an error that names it, so that
/// none of them hangs.
///
/// # Panics
/// Continues the panic of the first rank that panicked, after all have ended.
///
/// # Reference
/// `torch.multiprocessing.spawn`.
pub fn spawn<T: Send>(ranks: usize, f: impl Fn(Context) -> T + Send + Sync) -> Vec<T> {
    limit_threads(ranks);
    local::spawn(ranks, |group| {
        let rank = group.rank();
        f(Context::enter(group, rank))
    })
}

/// Runs `f` in a process for each of `ranks` ranks: starts this program again, with the arguments that it
/// has, as each of them, and waits until all have ended. In those processes the call joins the group and
/// runs `f`; so does it under any other launcher, which has said how many ranks there are.
///
/// What stands before the call runs in all of these processes, and in the one that waits; what stands behind
/// it, too. Lines of ranks are labelled. The calling thread must not end before.
///
/// # Errors
/// [`TrainError::Spawn`] with the rank that caused a failure and what it has left; whatever [`init`] says.
pub fn spawn_processes<E>(
    ranks: usize,
    f: impl FnOnce(Context) -> Result<(), E>,
) -> Result<(), SpawnError<E>> {
    if RankEnv::detect().map_err(TrainError::from)?.is_some() {
        let context = init().map_err(TrainError::from)?;
        return f(context).map_err(SpawnError::Rank);
    }
    let failed = |reason: String| SpawnError::Start(TrainError::Spawn { reason });
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut spec = WorkerSpec::new(program);
    spec.args = std::env::args_os().skip(1).collect();
    let outcome = launch(&Launch::new(spec, ranks)).map_err(|error| failed(error.to_string()))?;
    match outcome.exit_code {
        0 => Ok(()),
        _ => Err(failed(outcome.summary)),
    }
}

/// How ranks in processes of their own have failed.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError<E> {
    /// Happens where ranks cannot be started or joined, or one of them has failed.
    #[error(transparent)]
    Start(#[from] TrainError),
    /// Happens in the process of a rank.
    #[error("{0}")]
    Rank(E),
}
