//! Checkpoints that are written while training goes on.

use super::{Checkpoint, CheckpointError, Keep, save};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A checkpoint to be written.
pub(crate) struct Job {
    pub(crate) folder: PathBuf,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) keep: Keep,
}

/// Writes checkpoints on a thread of its own, one after the other.
///
/// INVARIANT: there is at most one that is being written, one that waits, and a best one that waits, so
/// the memory that they take is bounded. A newer one takes the place of one that waits, with a warning.
/// Nobody waits for the disk but [`wait`](Self::wait).
#[derive(Default)]
pub(crate) struct Writer {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Desk {
    papers: Mutex<Papers>,
    changed: Condvar,
}

#[derive(Default)]
struct Papers {
    waiting: Option<Job>,
    /// Older than `waiting`.
    waiting_best: Option<Job>,
    writing: bool,
    closed: bool,
    newest: Option<PathBuf>,
    failure: Option<Failure>,
}

/// A checkpoint that was not written.
pub(crate) struct Failure {
    pub(crate) error: CheckpointError,
    /// Whether it was to be kept as the best.
    pub(crate) best: bool,
}

impl Desk {
    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the papers back until `ready`.
    fn until(&self, ready: impl Fn(&Papers) -> bool) -> MutexGuard<'_, Papers> {
        let papers = self.papers();
        let waited = self.changed.wait_while(papers, |papers| !ready(papers));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes until the desk is closed.
    fn work(&self) {
        loop {
            let mut papers = self.until(|papers| papers.has_work() || papers.closed);
            let best = papers.waiting_best.take();
            let Some(job) = best.or_else(|| papers.waiting.take()) else { return };
            papers.writing = true;
            drop(papers);
            self.write(job);
            self.changed.notify_all();
        }
    }

    /// Writes a checkpoint, and notes what came of it.
    fn write(&self, job: Job) {
        let (step, best) = (job.checkpoint.manifest.step, job.keep.best);
        let saved = AssertUnwindSafe(|| save(&job.folder, job.checkpoint, job.keep));
        let result = catch_unwind(saved).unwrap_or_else(|_| {
            let reason = "the thread that writes it panicked".to_string();
            Err(CheckpointError::Encode { what: "a checkpoint", reason })
        });
        let mut papers = self.papers();
        papers.writing = false;
        match result {
            Ok(place) => papers.newest = Some(place),
            Err(error) => {
                tracing::error!("the checkpoint of step {step} was not written: {error}");
                papers.failure = Some(Failure { error, best });
            }
        }
    }
}

impl Papers {
    fn has_work(&self) -> bool {
        self.waiting.is_some() || self.waiting_best.is_some()
    }
}

impl Writer {
    /// Hands a checkpoint over to be written.
    pub(crate) fn start(&mut self, job: Job) {
        if self.thread.is_none() {
            let desk = self.desk.clone();
            let thread = std::thread::Builder::new().name("checkpoints".to_string());
            match thread.spawn(move || desk.work()) {
                Ok(thread) => self.thread = Some(thread),
                // No threads left: write it here.
                Err(_) => return self.desk.write(job),
            }
        }
        let mut papers = self.desk.papers();
        // What waits is older.
        let mut left_out = vec![papers.waiting.take()];
        match job.keep.best {
            true => left_out.push(papers.waiting_best.replace(job)),
            false => papers.waiting = Some(job),
        }
        drop(papers);
        self.desk.changed.notify_all();
        for left_out in left_out.into_iter().flatten() {
            tracing::warn!(
                "the checkpoint of step {} is left out: the disk is slower than checkpoints come; make \
                 fewer, or set checkpoint.asynchronous = false to wait for each",
                left_out.checkpoint.manifest.step
            );
        }
    }

    /// Takes the last failure, if there was one since this was asked.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.desk.papers().failure.take()
    }

    /// Waits until nothing is left to write, and returns the newest checkpoint.
    pub(crate) fn wait(&self) -> Option<PathBuf> {
        let papers = self.desk.until(|papers| !papers.has_work() && !papers.writing);
        papers.newest.clone()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.desk.papers().closed = true;
        self.desk.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
