//! Memory that the ranks of one machine share: byte pipes between each two of them, and slots
//! that all of them read.
//!
//! The processes of a group share a memfd, the rank-threads of one process an anonymous mapping;
//! both have the same layout and the same protocol. A memfd has no name, so nothing is left
//! behind however a rank dies, and it is not bounded by the size of `/dev/shm`.
//!
//! There are no locks: every word has one writer, except the bells. A rank that dies leaves words
//! that stop changing; the others learn of it from the session's membership.

#[allow(unsafe_code, reason = "futex(2) has no safe form")]
mod futex;
mod layout;
#[allow(unsafe_code, reason = "memory shared between processes is raw memory")]
mod segment;

pub(crate) use layout::SLOTS;
pub(crate) use segment::{Counter, Segment};
