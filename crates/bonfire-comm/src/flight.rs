//! The flight recorder: the last collectives of a rank, for the day when they stop.
//!
//! Every [`ProcessGroup`](crate::ProcessGroup) writes what it is asked to do into the
//! [`Recorder`] of its session: one entry a call, with the place in the source that called, and
//! when it was called, begun and ended. A rank dumps its recorder as JSON at its first failure,
//! when a folder is set ([`FOLDER_VARIABLE`] or [`Recorder::dump_on_failure`]), and on request
//! ([`Recorder::dump`]). [`analyze`] merges the dumps of all ranks and says in words which rank
//! is behind, in which collective, since when.
//!
//! ```
//! use bonfire_comm::{ReduceOp, flight, local};
//!
//! let folder = tempfile::tempdir()?;
//! local::spawn(2, |group| {
//!     flight::label("gradients", || group.all_reduce(&mut [1f32; 4], ReduceOp::Sum))?;
//!     group.flight_recorder().dump(folder.path())?;
//!     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! });
//! let report = flight::analyze(folder.path())?;
//! assert!(report.findings.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod analysis;
mod dump;
mod label;
mod merge;
mod mismatch;
mod recorder;
mod report;
mod ring;
mod standstill;
mod straggler;
#[cfg(test)]
mod tests;
mod words;

pub use analysis::analyze;
pub use dump::{Dump, Entry, GroupProgress, Reason, State, VERSION};
pub use label::label;
pub use merge::AnalyzeError;
pub use recorder::{FOLDER_VARIABLE, Record, Recorder, dump_on_signal};
pub use report::{
    BehindRank, DumpSummary, Failure, Finding, GroupSummary, LateCall, Mismatch, OpenMessage,
    RecordedCall, Report, Row, Side, Standstill, Straggler, TimedCall, WaitingRank,
};
pub use ring::{CAPACITY, GroupKey};
