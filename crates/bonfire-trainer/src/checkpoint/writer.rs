//! Checkpoints that are written while training goes on.

use super::{Checkpoint, CheckpointError, Keep, save};
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
/// INVARIANT: there is at most one that is being written and one that waits, so the memory that they
/// take is bounded. A newer one takes the place of one that waits, with a warning, unless that is to
/// be kept as the best. Nobody waits for the disk but [`wait`](Self::wait), and
/// [`start`](Self::start) behind a best one.
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
    writing: bool,
    closed: bool,
    newest: Option<PathBuf>,
    failure: Option<CheckpointError>,
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
            let mut papers = self.until(|papers| papers.waiting.is_some() || papers.closed);
            let Some(job) = papers.waiting.take() else { return };
            papers.writing = true;
            self.changed.notify_all();
            drop(papers);
            let step = job.checkpoint.manifest.step;
            let result = save(&job.folder, job.checkpoint, job.keep);
            let mut papers = self.papers();
            papers.writing = false;
            match result {
                Ok(place) => papers.newest = Some(place),
                Err(error) => {
                    tracing::error!("the checkpoint of step {step} was not written: {error}");
                    papers.failure = Some(error);
                }
            }
            self.changed.notify_all();
        }
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
                Err(_) => return self.write_here(job),
            }
        }
        let free = |papers: &Papers| papers.waiting.as_ref().is_none_or(|job| !job.keep.best);
        let left_out = self.desk.until(free).waiting.replace(job);
        self.desk.changed.notify_all();
        if let Some(left_out) = left_out {
            tracing::warn!(
                "the checkpoint of step {} is left out: the disk is slower than checkpoints come; make \
                 fewer, or set checkpoint.asynchronous = false to wait for each",
                left_out.checkpoint.manifest.step
            );
        }
    }

    fn write_here(&self, job: Job) {
        let result = save(&job.folder, job.checkpoint, job.keep);
        let mut papers = self.desk.papers();
        match result {
            Ok(place) => papers.newest = Some(place),
            Err(error) => papers.failure = Some(error),
        }
    }

    /// Takes the last failure, if there was one since this was asked.
    pub(crate) fn failure(&self) -> Option<CheckpointError> {
        self.desk.papers().failure.take()
    }

    /// Waits until nothing is left to write, and returns the newest checkpoint.
    pub(crate) fn wait(&self) -> Option<PathBuf> {
        let papers = self.desk.until(|papers| papers.waiting.is_none() && !papers.writing);
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
