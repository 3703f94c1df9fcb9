//! The processes of the ranks.

use std::io;
use std::process::Child;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::cause::Exit;
use super::command::worker_command;
use super::error::LaunchError;
use super::error_files::ErrorFiles;
use super::output;
use super::spec::WorkerSpec;

/// Time that output of ended ranks gets to arrive.
const DRAIN: Duration = Duration::from_secs(2);

/// One rank's process, and with it its process group.
struct Worker {
    child: Child,
    group: Pid,
    running: bool,
}

/// The processes of all ranks; dropping them kills and reaps those that still run.
pub(super) struct Workers {
    ranks: Vec<Worker>,
    output: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts every rank; on an error those already started are killed.
    pub(super) fn start(spec: &WorkerSpec, files: &ErrorFiles) -> Result<Self, LaunchError> {
        if spec.nproc == 0 {
            return Err(LaunchError::NoRanks);
        }
        let mut workers = Self { ranks: Vec::new(), output: Vec::new() };
        for rank in 0..spec.nproc {
            workers.start_rank(spec, rank, files).map_err(|source| LaunchError::Spawn {
                rank,
                program: spec.program.clone(),
                source,
            })?;
        }
        Ok(workers)
    }

    fn start_rank(&mut self, spec: &WorkerSpec, rank: usize, files: &ErrorFiles) -> io::Result<()> {
        let mut child = worker_command(spec, rank, &files.path(rank)).spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let group = i32::try_from(child.id()).map_err(io::Error::other)?;
        self.ranks.push(Worker { child, group: Pid::from_raw(group), running: true });
        if let Some(stdout) = stdout {
            self.output.push(output::forward_to_stderr(rank, spec.labels, stdout)?);
        }
        if let Some(stderr) = stderr {
            self.output.push(output::forward_to_stderr(rank, spec.labels, stderr)?);
        }
        Ok(())
    }

    /// Returns whether any rank still runs.
    pub(super) fn any_running(&self) -> bool {
        self.ranks.iter().any(|worker| worker.running)
    }

    /// Sends a signal to the process group of every rank that still runs.
    pub(super) fn signal(&self, signal: Signal) {
        for worker in self.ranks.iter().filter(|worker| worker.running) {
            worker.signal(signal);
        }
    }

    /// Reaps the ranks that have ended since the last call.
    pub(super) fn reap(&mut self) -> Vec<(usize, Exit)> {
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
        output::join(std::mem::take(&mut self.output), DRAIN);
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
