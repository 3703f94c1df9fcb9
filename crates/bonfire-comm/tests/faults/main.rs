//! The fault table: whatever happens to one rank, every other one ends in time with an error that
//! names it, and nothing stays behind.
//!
//! | fault | file |
//! |---|---|
//! | killed, stopped, ends early, never comes | `deaths` |
//! | wrong operation, length, type | `mismatches` |
//! | connection closed | `sockets` |
//! | connection dead without a word, two machines | `network` |
//! | strangers, garbage, half-open connections | `strangers` |
//! | port of the store taken | `port` |
//!
//! Each with shared memory, with TCP, and with both. The ranks are processes: this program starts
//! itself again (`rank`), `world` watches over them, and `remains` looks for what they leave.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "ranks report on their standard output")]

mod deaths;
mod mismatches;
mod network;
mod port;
mod rank;
mod remains;
mod sockets;
mod strangers;
mod world;

/// What a rank process does, when this program was started as one.
#[test]
fn rank_process() {
    rank::main();
}
