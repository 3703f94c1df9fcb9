//! The processes of the ranks.

use std::io;
use std::process::Child;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::cause::Exit;
use crate::command::{Prepared, prepare};
use crate::error::LaunchError;
use crate::error_files::ErrorFiles;
use crate::output::{self, Copy, LastWords};
use crate::spec::{Place, WorkerSpec};
use crate::streams::{Console, Stream};

/// Time that output of ended ranks gets to arrive.
const DRAIN: Duration = Duration::from_secs(2);

/// One rank's process, and with it its process group.
struct Worker {
    child: Child,
    group: Pid,
    running: bool,
    last_words: LastWords,
}

/// The processes of all ranks; dropping them kills and reaps those that still run.
pub(crate) struct Workers {
    ranks: Vec<Worker>,
    output: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts every rank; on an error those already started are killed.
    pub(crate) fn start(
        spec: &WorkerSpec,
        place: &Place,
        files: &ErrorFiles,
    ) -> Result<Self, LaunchError> {
        if place.nproc == 0 {
            return Err(LaunchError::NoRanks);
        }
        let mut workers = Self { ranks: Vec::new(), output: Vec::new() };
        for local_rank in 0..place.nproc {
            workers.start_rank(spec, place, local_rank, files).map_err(|source| {
                let (rank, program) = (place.rank(local_rank), spec.program.clone());
                LaunchError::Spawn { rank, program, source }
            })?;
        }
        Ok(workers)
    }

    fn start_rank(
        &mut self,
        spec: &WorkerSpec,
        place: &Place,
        local_rank: usize,
        files: &ErrorFiles,
    ) -> io::Result<()> {
        let Prepared { mut command, out, err } =
            prepare(spec, place, local_rank, &files.path(local_rank))?;
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let group = i32::try_from(child.id()).map_err(io::Error::other)?;
        let last_words = LastWords::default();
        self.ranks.push(Worker {
            child,
            group: Pid::from_raw(group),
            running: true,
            last_words: last_words.clone(),
        });
        let streams = &spec.streams;
        let copy = |stream, log| Copy {
            rank: place.rank(local_rank),
            labels: streams.labels,
            to: match streams.console {
                Console::EachToItsOwn => stream,
                Console::FirstHasTheTerminal => Stream::Err,
            },
            log,
            last_words: last_words.clone(),
        };
        if let (Some(stdout), Some(log)) = (stdout, out) {
            self.output.push(copy(Stream::Out, log).start(stdout)?);
        }
        if let (Some(stderr), Some(log)) = (stderr, err) {
            self.output.push(copy(Stream::Err, log).start(stderr)?);
        }
        Ok(())
    }

    /// The end of what a rank has printed to pipes.
    pub(crate) fn last_words(&self, local_rank: usize) -> String {
        self.ranks.get(local_rank).map_or_else(String::new, |worker| worker.last_words.text())
    }

    /// Waits for the output of ranks that have ended.
    pub(crate) fn drain(&mut self) {
        output::join(std::mem::take(&mut self.output), DRAIN);
    }

    /// Returns whether any rank still runs.
    pub(crate) fn any_running(&self) -> bool {
        self.ranks.iter().any(|worker| worker.running)
    }

    /// Sends a signal to the process group of every rank that still runs.
    pub(crate) fn signal(&self, signal: Signal) {
        for worker in self.ranks.iter().filter(|worker| worker.running) {
            worker.signal(signal);
        }
    }

    /// Reaps the ranks that have ended since the last call.
    pub(crate) fn reap(&mut self) -> Vec<(usize, Exit)> {
        let ranks = self.ranks.iter_mut().enumerate();
        ranks.filter_map(|(rank, worker)| worker.reap().map(|exit| (rank, exit))).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        for worker in self.ranks.iter_mut().filter(|worker| worker.running) {
            if let Err(error) = worker.child.wait() {
                tracing::debug!(%error, "cannot reap a worker");
            }
        }
        self.drain();
    }
}

impl Worker {
    fn signal(&self, signal: Signal) {
        if let Err(error) = killpg(self.group, signal) {
            tracing::debug!(group = %self.group, %signal, %error, "cannot send a signal");
        }
    }

    /// Reaps the rank if it has ended, and kills what remains of its process group.
    fn reap(&mut self) -> Option<Exit> {
        if !self.running {
            return None;
        }
        // ORDER: the group is killed while its ended leader is not yet reaped, which keeps the
        // number of the group from being given to a new process.
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.group), peek) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => return None,
            Ok(_) => self.signal(Signal::SIGKILL),
            Err(error) => tracing::debug!(group = %self.group, %error, "cannot wait for a worker"),
        }
        self.running = false;
        match self.child.wait() {
            Ok(status) => Some(Exit::of(status)),
            Err(error) => {
                tracing::warn!(group = %self.group, %error, "a worker's exit status is lost");
                Some(Exit::Code(1))
            }
        }
    }
}
