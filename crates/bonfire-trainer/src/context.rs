//! Who a process is in its run: what a program asks for at the top of `main`.

use crate::{TrainError, keep_freed_memory, limit_threads, note_panics};
use bonfire_comm::{CommError, InitOptions, ProcessGroup, RankEnv, init_process_group};
use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tempfile::TempDir;

thread_local! {
    static CURRENT: RefCell<Weak<Inner>> = const { RefCell::new(Weak::new()) };
}

/// Time for the store, which may be part of this process, to pass on why the run has failed.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Joins the run that the environment names, or makes a run of this process alone.
///
/// The variables are torchrun's (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, ...), or those
/// of Open MPI, PMI or Slurm; see [`RankEnv`]. Call it first thing in `main` and keep what it
/// returns: the process leaves the run when the last [`Context`] is dropped. It also sets the number
/// of threads ([`limit_threads`]) and calls [`keep_freed_memory`] and [`note_panics`]. A second call on the same thread
/// returns the same context.
///
/// # Collective
/// All ranks of the run; blocks until all are there.
///
/// # Errors
/// As [`init_process_group`].
///
/// # Reference
/// `torch.distributed.init_process_group`.
pub fn init() -> Result<Context, CommError> {
    init_with(InitOptions::default())
}

/// As [`init`], with options such as the deadline of every collective.
///
/// # Errors
/// As [`init`].
pub fn init_with(options: InitOptions) -> Result<Context, CommError> {
    if let Some(context) = Context::current() {
        return Ok(context);
    }
    keep_freed_memory();
    note_panics();
    let env = RankEnv::detect()?;
    limit_threads(env.as_ref().map_or(1, |env| env.local_world_size));
    let group = match &env {
        Some(env) => init_process_group(env, options)?,
        None => ProcessGroup::single(),
    };
    Ok(Context::enter(group, env.map_or(0, |env| env.local_rank)))
}

/// This process' place in its run. Cheap to clone.
#[derive(Clone)]
#[must_use = "the process leaves the run when the last context is dropped"]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    group: ProcessGroup,
    local_rank: usize,
    /// Pass over the training data, from 0.
    epoch: AtomicU64,
    /// Sharded loaders that were moved to a device.
    sharded: AtomicUsize,
    scratch: Mutex<Option<TempDir>>,
}

impl Context {
    /// Makes a context of a group that stands already and sets it for this thread, for programs
    /// whose ranks are threads.
    pub fn enter(group: ProcessGroup, local_rank: usize) -> Self {
        let inner = Inner {
            group,
            local_rank,
            epoch: AtomicU64::new(0),
            sharded: AtomicUsize::new(0),
            scratch: Mutex::new(None),
        };
        let inner = Arc::new(inner);
        CURRENT.set(Arc::downgrade(&inner));
        Self { inner }
    }

    /// The context that [`init`] or [`enter`](Self::enter) has set on this thread, while it lives.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Weak::upgrade).map(|inner| Self { inner })
    }

    /// As [`current`](Self::current), for callers that cannot do without.
    pub(crate) fn expect_current() -> Result<Self, TrainError> {
        Self::current().ok_or(TrainError::NotInitialized)
    }

    /// This process among all of the run.
    pub fn rank(&self) -> usize {
        self.inner.group.rank()
    }

    /// This process among those of its machine: the number of its device.
    pub fn local_rank(&self) -> usize {
        self.inner.local_rank
    }

    /// Processes in the run.
    pub fn world_size(&self) -> usize {
        self.inner.group.world_size()
    }

    /// The group of all ranks.
    pub fn group(&self) -> &ProcessGroup {
        &self.inner.group
    }

    /// The folder in which this rank may leave files: `path` on rank 0, a scratch folder that goes
    /// with the context on every other.
    ///
    /// # Errors
    /// [`TrainError::Io`] when the system has no room for a scratch folder.
    pub fn artifact_folder(&self, path: impl AsRef<Path>) -> Result<PathBuf, TrainError> {
        if self.rank() == 0 {
            return Ok(path.as_ref().to_path_buf());
        }
        let mut scratch = self.scratch();
        if let Some(folder) = &*scratch {
            return Ok(folder.path().to_path_buf());
        }
        let made = tempfile::Builder::new().prefix("bonfire-rank-").tempdir();
        let folder =
            made.map_err(TrainError::io("making a scratch folder in", std::env::temp_dir()))?;
        Ok(scratch.insert(folder).path().to_path_buf())
    }

    /// Pass over the training data at hand, from 0.
    pub(crate) fn epoch(&self) -> u64 {
        self.inner.epoch.load(Ordering::Relaxed)
    }

    /// Tells the sharded loaders which pass begins.
    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.inner.epoch.store(epoch, Ordering::Relaxed);
    }

    /// How often a sharded loader was moved to a device: a loader behind Burn's trait can be told
    /// apart only by what it does.
    pub(crate) fn sharded_loaders(&self) -> usize {
        self.inner.sharded.load(Ordering::Relaxed)
    }

    pub(crate) fn count_sharded_loader(&self) {
        self.inner.sharded.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends this process because of `error`, and with it the run: the other ranks get an error that
    /// names this one. For callers who cannot return an error.
    pub(crate) fn exit(&self, error: &TrainError) -> ! {
        let rank = self.rank();
        if !error.is_of_another_rank() {
            self.inner.group.abort(&error.to_string());
        }
        if let Some(path) = std::env::var_os("BONFIRE_ERROR_FILE")
            && let Err(reason) = std::fs::write(&path, error.to_string())
        {
            eprintln!("writing the error file {} failed: {reason}", path.display());
        }
        eprintln!("rank {rank}: error: {error}");
        drop(self.scratch().take());
        std::thread::sleep(LAST_WORDS);
        std::process::exit(1)
    }

    fn scratch(&self) -> std::sync::MutexGuard<'_, Option<TempDir>> {
        self.inner.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("group", &self.inner.group).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test reports by panicking")]
mod tests {
    use super::*;
    use bonfire_comm::local;

    #[test]
    fn the_context_of_a_thread_ends_with_its_last_handle() {
        assert!(Context::current().is_none());
        let context = init().unwrap();
        assert_eq!((context.rank(), context.world_size(), context.local_rank()), (0, 1, 0));
        let again = init().unwrap();
        assert!(Arc::ptr_eq(&context.inner, &again.inner));
        drop((context, again));
        assert!(Context::current().is_none());
    }

    #[test]
    fn ranks_other_than_0_leave_their_files_in_a_folder_that_goes_with_them() {
        let folders = local::spawn(2, |group| {
            let context = Context::enter(group, 0);
            let folder = context.artifact_folder("runs/here").unwrap();
            assert_eq!(folder, context.artifact_folder("runs/here").unwrap());
            (folder.is_dir(), folder)
        });
        let (_, of_rank_0) = &folders[0];
        assert_eq!(of_rank_0, Path::new("runs/here"));
        let (existed, scratch) = &folders[1];
        assert!(existed & !scratch.exists(), "{}", scratch.display());
    }
}
