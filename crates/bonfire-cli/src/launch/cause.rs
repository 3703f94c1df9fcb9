//! How the workers ended, and which rank was the cause.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;

use super::error_files::ErrorFiles;

/// Failures this close together count as one event: the ranks that lose a peer fail right after
/// it, and may even be seen first.
const SAME_EVENT: Duration = Duration::from_millis(500);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl Exit {
    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(1),
        }
    }

    /// Returns the exit code that a shell would report: 128 + the number of the signal for a
    /// process that was killed.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(number) => match Signal::try_from(number) {
                Ok(signal) => write!(f, "was killed by signal {number} ({signal})"),
                Err(_) => write!(f, "was killed by signal {number}"),
            },
        }
    }
}

/// A rank that did not end as it should, and when that was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) rank: usize,
    pub(super) exit: Exit,
    pub(super) at: Instant,
}

/// How all ranks ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Ranks that failed before the launcher itself ended the others, in the order of time.
    pub(super) failures: Vec<Failure>,
    /// How the ranks ended that finished or obeyed a signal.
    pub(super) stops: Vec<Exit>,
    /// Forwarded signals that ask ranks to stop, in the order of time.
    pub(super) stopped_by: Vec<Signal>,
    /// Whether a second SIGINT killed the ranks.
    pub(super) killed_by_user: bool,
}

/// The rank whose failure ended a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankFailure {
    /// The rank.
    pub rank: usize,
    /// How it ended.
    pub exit: Exit,
    /// What it left in its error file, if anything.
    pub message: Option<String>,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.exit)?;
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}

/// How a run of workers ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchOutcome {
    /// Exit code for the launcher: 0 when all ranks finished, that of the rank that caused a
    /// failure (128 + the number of the signal when it was killed), or that of ranks that obeyed
    /// a signal, such as 130 after Ctrl-C.
    pub exit_code: i32,
    /// What happened, for a person: `rank 1 was killed by signal 9 (SIGKILL)`.
    pub summary: String,
    /// The rank that caused a failure; `None` when no rank failed.
    pub failure: Option<RankFailure>,
}

impl LaunchOutcome {
    pub(super) fn new(ended: Ended, nproc: usize, files: &ErrorFiles) -> Self {
        let failure = root_cause(&ended.failures, |rank| files.written(rank)).map(|cause| {
            RankFailure { rank: cause.rank, exit: cause.exit, message: files.read(cause.rank) }
        });
        let stop = ended.stops.iter().map(|exit| exit.code()).find(|&code| code != 0);
        let (exit_code, summary) = match (&failure, stop) {
            _ if ended.killed_by_user => {
                (130, "all ranks were killed after a second SIGINT".to_owned())
            }
            (Some(failure), _) => (failure.exit.code(), failure.to_string()),
            (None, Some(code)) => (code, stop_summary(&ended.stopped_by, code)),
            (None, None) => (0, format!("all {nproc} ranks finished")),
        };
        Self { exit_code, summary, failure }
    }
}

fn stop_summary(stopped_by: &[Signal], code: i32) -> String {
    match stopped_by.first() {
        Some(signal) => format!("all ranks stopped after {signal} (exit code {code})"),
        None => format!("all ranks stopped and ask to be started again (exit code {code})"),
    }
}

/// Picks the failure that most likely caused the others: the earliest, unless at nearly the same
/// time a rank was killed by a signal, or else had written its error down before.
fn root_cause(
    failures: &[Failure],
    written: impl Fn(usize) -> Option<SystemTime>,
) -> Option<&Failure> {
    let first = failures.iter().min_by_key(|failure| failure.at)?;
    let event = || failures.iter().filter(|failure| failure.at - first.at <= SAME_EVENT);
    let killed = event().filter(|failure| matches!(failure.exit, Exit::Signal(_)));
    if let Some(killed) = killed.min_by_key(|failure| failure.at) {
        return Some(killed);
    }
    if written(first.rank).is_none() {
        return Some(first);
    }
    event().filter(|failure| written(failure.rank).is_some()).min_by_key(|f| written(f.rank))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, UNIX_EPOCH};

    use super::{Exit, Failure, root_cause};

    fn cause(failures: &[(usize, Exit, u64)]) -> Option<usize> {
        let start = Instant::now();
        let failures: Vec<Failure> = failures
            .iter()
            .map(|&(rank, exit, ms)| Failure { rank, exit, at: start + Duration::from_millis(ms) })
            .collect();
        root_cause(&failures, |_| None).map(|failure| failure.rank)
    }

    #[test]
    fn of_errors_at_nearly_the_same_time_the_first_written_is_the_cause() {
        let at = Instant::now();
        let failures = [0, 1].map(|rank| Failure { rank, exit: Exit::Code(1), at });
        let cause = |written: [Option<u64>; 2]| {
            let written = |rank: usize| written[rank].map(|s| UNIX_EPOCH + Duration::from_secs(s));
            root_cause(&failures, written).map(|failure| failure.rank)
        };
        assert_eq!(cause([Some(2), Some(1)]), Some(1));
        assert_eq!(cause([Some(1), Some(2)]), Some(0));
        assert_eq!(cause([Some(1), None]), Some(0));
        assert_eq!(cause([None, Some(1)]), Some(0));
    }

    #[test]
    fn the_earliest_failure_is_the_cause_unless_a_rank_was_killed_at_nearly_the_same_time() {
        let (error, killed) = (Exit::Code(1), Exit::Signal(9));
        assert_eq!(cause(&[]), None);
        assert_eq!(cause(&[(2, error, 0), (1, error, 10)]), Some(2));
        assert_eq!(cause(&[(0, error, 0), (1, killed, 400)]), Some(1));
        assert_eq!(cause(&[(0, error, 0), (1, killed, 600)]), Some(0));
        assert_eq!(cause(&[(0, error, 0), (1, killed, 30), (2, killed, 20)]), Some(2));
    }

    #[test]
    fn exits_read_as_a_shell_reports_them() {
        assert_eq!(Exit::Code(3).to_string(), "exited with code 3");
        assert_eq!(Exit::Signal(9).to_string(), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Exit::Signal(50).to_string(), "was killed by signal 50");
        assert_eq!((Exit::Code(3).code(), Exit::Signal(9).code()), (3, 137));
    }
}
