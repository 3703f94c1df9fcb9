//! Starts the ranks of a run on one or many machines, watches them, starts them again, and leaves none
//! behind.
//!
//! [`launch`] runs on every node, starts a program once a rank and returns when the run has ended. The
//! rules, in the order in which they matter:
//!
//! - **One failure ends the attempt.** When a rank exits with an error or is killed, the others get a
//!   pause to report what they see, then SIGTERM, and after the shutdown time SIGKILL; on all nodes.
//! - **The root cause is named.** Ranks that fail in the wake of another are not reported: the
//!   earliest failure is, and a rank killed by a signal goes before ranks that exited with an
//!   error at nearly the same time, since those most likely report its loss.
//! - **Restarts.** While [`Launch::max_restarts`] lasts, all ranks are started again, after a pause that
//!   doubles. With a range of nodes the run goes on with those that are left, and takes in new ones.
//! - **Signals reach the ranks.** SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded
//!   (SIGHUP unless the launcher was started to ignore it, as `nohup` does), since a terminal's Ctrl-C
//!   reaches only the launcher's own process group. After a forwarded signal (or exit code 75: saved,
//!   asks to be requeued), ranks that stop orderly are waited for without a limit: a checkpoint may take
//!   long, and after it no restart takes place. A second SIGINT or SIGTERM kills them.
//! - **Nothing is left behind.** A rank is a process group; what remains of a group when its first
//!   process has ended is killed. Ranks die with the launcher, even if it dies of SIGKILL; what a
//!   rank has started itself then has to notice on its own.
//!
//! # Reference
//! `torchrun`, whose names and defaults the options have.

mod attempt;
mod cause;
mod command;
mod cores;
mod count;
mod error;
mod error_files;
mod hints;
mod launch;
mod meeting;
#[cfg(test)]
mod node_tests;
mod orphan;
mod output;
mod signals;
mod spec;
mod streams;
mod supervise;
#[cfg(test)]
mod tests;
mod token;
mod worker;

pub use cause::{Exit, LaunchOutcome, RankFailure};
pub use count::{NodeCount, ProcessCount};
pub use error::LaunchError;
pub use launch::{Launch, Meet, launch};
pub use signals::is_ignored;
pub use spec::WorkerSpec;
pub use streams::{Console, Labels, Std, StdByRank, Streams};
