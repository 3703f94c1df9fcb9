//! How the workers ended, and which rank was the cause.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;

use crate::error_files::ErrorFiles;
use crate::hints::Clues;
use serde::{Deserialize, Serialize};

/// Exit code of a rank that saved its state and asks to be started again.
pub(crate) const REQUEUE: i32 = 75;

/// Failures this close together count as one event: the ranks that lose a peer fail right after
/// it, and may even be seen first.
const SAME_EVENT: Duration = Duration::from_millis(500);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl Exit {
    pub(crate) fn of(status: ExitStatus) -> Self {
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
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) local_rank: usize,
    pub(crate) exit: Exit,
    pub(crate) at: Instant,
}

/// How all ranks ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Ranks that failed before the launcher itself ended the others, in the order of time.
    pub(crate) failures: Vec<Failure>,
    /// How the ranks ended that finished or obeyed a signal.
    pub(crate) stops: Vec<Exit>,
    /// Forwarded signals that ask ranks to stop, in the order of time.
    pub(crate) stopped_by: Vec<Signal>,
    /// The signal whose second arrival killed the ranks.
    pub(crate) killed_by_user: Option<Signal>,
}

impl Ended {
    /// The exit code of ranks that stopped orderly and have not finished.
    pub(crate) fn stop(&self) -> Option<i32> {
        self.stops.iter().map(|exit| exit.code()).find(|&code| code != 0)
    }

    /// The rank of this node that most likely made the others fail.
    pub(crate) fn cause(&self, files: &ErrorFiles, clues: &Clues) -> Option<RankFailure> {
        let cause = root_cause(&self.failures, |rank| files.written(rank))?;
        let since_1970 = |at: SystemTime| {
            at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
        };
        let at_ms = since_1970(SystemTime::now() - cause.at.elapsed());
        let written_ms = files.written(cause.local_rank).map(since_1970);
        let message = files.read(cause.local_rank);
        let hint = clues.hint(cause.exit, cause.local_rank, message.as_deref());
        let last_line = clues.last_line(cause.local_rank);
        Some(RankFailure {
            rank: cause.rank,
            exit: cause.exit,
            message,
            last_line,
            hint,
            at_ms,
            written_ms,
        })
    }
}

/// The rank whose failure ended a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankFailure {
    /// The rank.
    pub rank: usize,
    /// How it ended.
    pub exit: Exit,
    /// What it left in its error file, if anything.
    pub message: Option<String>,
    /// The last line that it has printed to a pipe of the launcher's.
    pub last_line: Option<String>,
    /// What to do, where the cause is a common one.
    pub hint: Option<String>,
    /// When its end was seen, in milliseconds since 1970 by the clock of its machine.
    pub at_ms: u64,
    /// When it wrote its error file, if it did.
    pub written_ms: Option<u64>,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.exit)?;
        match (&self.message, &self.last_line) {
            (Some(message), _) => write!(f, ": {message}"),
            (None, Some(line)) => write!(f, ", after it had said: {line}"),
            (None, None) => Ok(()),
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
    pub(crate) fn finished(ranks: usize) -> Self {
        Self { exit_code: 0, summary: format!("all {ranks} ranks finished"), failure: None }
    }

    pub(crate) fn failed(failure: RankFailure) -> Self {
        let (exit_code, summary) = (failure.exit.code(), failure.to_string());
        Self { exit_code, summary, failure: Some(failure) }
    }

    pub(crate) fn stopped(stopped_by: Option<Signal>, exit_code: i32) -> Self {
        Self { exit_code, summary: stop_summary(stopped_by, exit_code), failure: None }
    }

    pub(crate) fn killed_by_user(signal: Signal) -> Self {
        let summary = format!("all ranks were killed after a second {signal}");
        Self { exit_code: 128 + signal as i32, summary, failure: None }
    }

    /// An end that no rank of the run is known to have caused.
    pub(crate) fn lost(summary: String) -> Self {
        Self { exit_code: 1, summary, failure: None }
    }
}

fn stop_summary(stopped_by: Option<Signal>, code: i32) -> String {
    match stopped_by {
        Some(signal) => format!("all ranks stopped after {signal} (exit code {code})"),
        None if code != REQUEUE => format!("all ranks stopped (exit code {code})"),
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
    if written(first.local_rank).is_none() {
        return Some(first);
    }
    let told = event().filter(|failure| written(failure.local_rank).is_some());
    told.min_by_key(|failure| written(failure.local_rank))
}

/// Picks by the same rule among the causes that the nodes have found.
pub(crate) fn root_cause_of_nodes(causes: Vec<RankFailure>) -> Option<RankFailure> {
    let first = causes.iter().min_by_key(|cause| cause.at_ms)?.clone();
    let limit = first.at_ms.saturating_add(SAME_EVENT.as_millis() as u64);
    let event = || causes.iter().filter(|cause| cause.at_ms <= limit);
    let killed = event().filter(|cause| matches!(cause.exit, Exit::Signal(_)));
    if let Some(killed) = killed.min_by_key(|cause| cause.at_ms) {
        return Some(killed.clone());
    }
    if first.written_ms.is_none() {
        return Some(first);
    }
    let told = event().filter(|cause| cause.written_ms.is_some());
    told.min_by_key(|cause| cause.written_ms).cloned()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, UNIX_EPOCH};

    use super::{Exit, Failure, RankFailure, root_cause, root_cause_of_nodes};

    fn cause(failures: &[(usize, Exit, u64)]) -> Option<usize> {
        let start = Instant::now();
        let failures: Vec<Failure> = failures
            .iter()
            .map(|&(rank, exit, ms)| {
                let at = start + Duration::from_millis(ms);
                Failure { rank, local_rank: rank, exit, at }
            })
            .collect();
        root_cause(&failures, |_| None).map(|failure| failure.rank)
    }

    #[test]
    fn of_errors_at_nearly_the_same_time_the_first_written_is_the_cause() {
        let at = Instant::now();
        let failures =
            [0, 1].map(|rank| Failure { rank, local_rank: rank, exit: Exit::Code(1), at });
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
    fn over_nodes_a_killed_rank_goes_before_errors_at_nearly_the_same_time() {
        let cause = |causes: &[(usize, Exit, u64)]| {
            let failure = |&(rank, exit, at_ms): &(usize, Exit, u64)| RankFailure {
                rank,
                exit,
                message: None,
                last_line: None,
                hint: None,
                at_ms,
                written_ms: None,
            };
            root_cause_of_nodes(causes.iter().map(failure).collect()).map(|cause| cause.rank)
        };
        let (error, killed) = (Exit::Code(1), Exit::Signal(9));
        assert_eq!(cause(&[]), None);
        assert_eq!(cause(&[(0, error, 10), (4, killed, 200)]), Some(4));
        assert_eq!(cause(&[(0, error, 10), (4, killed, 900)]), Some(0));
        assert_eq!(cause(&[(3, error, 20), (4, error, 10)]), Some(4));
        // One that wrote nothing was first; what another wrote before it was seen does not change that.
        let failure = |rank, at_ms, written_ms| RankFailure {
            rank,
            exit: error,
            message: None,
            last_line: None,
            hint: None,
            at_ms,
            written_ms,
        };
        let cause = |causes: Vec<RankFailure>| root_cause_of_nodes(causes).unwrap().rank;
        assert_eq!(cause(vec![failure(0, 120, Some(95)), failure(1, 100, None)]), 1);
        assert_eq!(cause(vec![failure(0, 120, Some(95)), failure(1, 100, Some(99))]), 0);
    }

    #[test]
    fn exits_read_as_a_shell_reports_them() {
        assert_eq!(Exit::Code(3).to_string(), "exited with code 3");
        assert_eq!(Exit::Signal(9).to_string(), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Exit::Signal(50).to_string(), "was killed by signal 50");
        assert_eq!((Exit::Code(3).code(), Exit::Signal(9).code()), (3, 137));
    }
}
