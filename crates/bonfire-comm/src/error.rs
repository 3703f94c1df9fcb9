//! What can go wrong between ranks.

use std::fmt;
use std::time::Duration;

use crate::engine::MemoryKind;
use crate::{DType, EngineKind};

/// An error of this crate. It can be cloned, because a poisoned group returns it again and again.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// Happens when the chosen engine cannot be used here. Another is never taken silently.
    #[error("engine \"{engine}\" cannot be used: {reason}; {remedy}")]
    EngineUnavailable {
        /// The engine that was asked for.
        engine: EngineKind,
        /// What is missing.
        reason: String,
        /// What to install or choose instead.
        remedy: String,
    },
    /// Happens when the ranks of a machine cannot share memory.
    #[error(
        "rank {rank} cannot share memory with the ranks of its machine: {detail}; set \
         BONFIRE_TRANSPORT=tcp on every rank to connect them by TCP instead"
    )]
    SharedMemory {
        /// The rank of the group that failed.
        rank: usize,
        /// What the system said.
        detail: String,
    },
    /// Happens when a rank ended without saying goodbye, or panicked.
    #[error("rank {rank} died ({detail}); look at that rank's own log for the cause")]
    Died {
        /// Rank of the world that died.
        rank: usize,
        /// How it was noticed.
        detail: String,
    },
    /// Happens when a rank dropped its groups while others still communicate with it.
    #[error(
        "rank {rank} left the group {group:?} ({detail}); every rank must make the same \
         collective calls before it drops its groups"
    )]
    Left {
        /// Rank of the world that left.
        rank: usize,
        /// Group in which it is missed.
        group: String,
        /// The call that missed it.
        detail: String,
    },
    /// Happens when another rank reported a failure, which ends the session of all ranks.
    #[error("rank {rank} failed: {reason}")]
    Poisoned {
        /// Rank of the world that failed first.
        rank: usize,
        /// The failure as that rank tells it.
        reason: String,
    },
    /// Happens when two ranks are in different collectives, or in the same with different buffers.
    #[error(
        "group {group:?}: rank {rank} called {local}, rank {peer} called {remote}; every rank \
         must call the same collectives in the same order with the same type and length"
    )]
    Mismatch {
        /// Group of the collective.
        group: String,
        /// This rank, in the group.
        rank: usize,
        /// The other rank, in the group.
        peer: usize,
        /// The call of this rank, with its sequence number.
        local: String,
        /// The call of the other rank, with its sequence number.
        remote: String,
    },
    /// Happens when a collective did not finish before its deadline.
    #[error(
        "group {group:?}: rank {rank} waited {timeout:?} in {operation}; {missing}; raise the \
         timeout if the ranks are only slow"
    )]
    Timeout {
        /// Group of the collective.
        group: String,
        /// This rank, in the group.
        rank: usize,
        /// The call that timed out, with its sequence number.
        operation: String,
        /// The time allowed.
        timeout: Duration,
        /// Which ranks are missing, in words.
        missing: String,
    },
    /// Happens when the connection to a rank broke and no root cause became known.
    #[error(
        "group {group:?}: the connection to rank {peer} broke during {operation} ({detail}); \
         that rank dropped its handle of the group, or its machine or the network failed"
    )]
    LinkLost {
        /// Group of the connection.
        group: String,
        /// The other rank, in the group.
        peer: usize,
        /// The call that was running.
        operation: String,
        /// What the operating system said.
        detail: String,
    },
    /// Happens when a peer sent bytes that are no message of this protocol.
    #[error("group {group:?}: rank {peer} sent a malformed message ({detail})")]
    Malformed {
        /// Group of the connection.
        group: String,
        /// The other rank, in the group.
        peer: usize,
        /// What is wrong with it.
        detail: String,
    },
    /// Happens when a rank number is not in the group.
    #[error("{role} {rank} is not in group {group:?} of {world_size} ranks")]
    NoSuchRank {
        /// What the rank was given as: root, destination, source.
        role: &'static str,
        /// The number given.
        rank: usize,
        /// Group of the call.
        group: String,
        /// Number of ranks in it.
        world_size: usize,
    },
    /// Happens when the length of a slice does not fit the collective.
    #[error("{operation}: {what} has {got} elements, {expected} are needed")]
    WrongLength {
        /// The collective.
        operation: &'static str,
        /// The argument.
        what: &'static str,
        /// The length needed.
        expected: String,
        /// The length given.
        got: usize,
    },
    /// Happens when a buffer is taken as another type than it holds.
    #[error("buffer holds {got} elements, {expected} was asked for")]
    WrongDType {
        /// The type asked for.
        expected: DType,
        /// The type held.
        got: DType,
    },
    /// Happens when a buffer is not where it is needed.
    #[error("buffer is not in {expected} memory")]
    WrongMemory {
        /// Where it would have to be.
        expected: MemoryKind,
    },
    /// Happens when a device, or what it takes to use one, is missing.
    #[error("device {device:?} cannot be used: {reason}; {remedy}")]
    DeviceUnavailable {
        /// Name of the device, such as `cuda:1`.
        device: String,
        /// What is missing.
        reason: String,
        /// What to install or to do instead.
        remedy: String,
    },
    /// Happens when a device fails beside a collective.
    #[error("the device could not {what}: {detail}")]
    Device {
        /// What it was to do.
        what: String,
        /// What it said.
        detail: String,
    },
    /// Happens when the library that moves bytes between devices fails.
    #[error("group {group:?}: rank {rank}: {library} failed in {operation}: {detail}")]
    Library {
        /// Group of the operation.
        group: String,
        /// This rank, in the group.
        rank: usize,
        /// Name of the library.
        library: &'static str,
        /// The call that failed, with its sequence number.
        operation: String,
        /// What the library said.
        detail: String,
    },
    /// Happens when an engine cannot do what was asked.
    #[error("engine {engine:?} does not support {what}; choose another engine")]
    Unsupported {
        /// Name of the engine.
        engine: &'static str,
        /// What was asked.
        what: String,
    },
    /// Happens when some variables that describe the rank are set and others are not.
    #[error(
        "{} not set, but {} {}; start the program with torchrun or `bonfire train --nproc-per-node N`, or set all \
         of them",
        list(missing), list(present), if present.len() == 1 { "is" } else { "are" }
    )]
    MissingVariables {
        /// Names of the variables that are missing.
        missing: Vec<&'static str>,
        /// Names of those that are set.
        present: Vec<&'static str>,
    },
    /// Happens when an environment variable does not parse.
    #[error("environment variable {name} is {value:?}, expected {expected}")]
    InvalidVariable {
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: String,
    },
    /// Happens when ranks of several machines have no common token.
    #[error(
        "no token, and the ranks span several machines: run `export BONFIRE_TOKEN=$(head -c 16 \
         /dev/urandom | od -An -tx1 | tr -d ' \\n')` once and give every rank that value, or \
         pass --insecure on a network that you trust"
    )]
    NoToken,
    /// Happens when the file with the shared token cannot be made or trusted.
    #[error("token file {path}: {detail}")]
    TokenFile {
        /// Path of the file.
        path: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Happens when the other end refuses this process.
    #[error("{address} refused rank {rank}: {reason}")]
    Refused {
        /// Address of the other end.
        address: String,
        /// Rank of this process.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// Happens when ranks disagree on the number of ranks.
    #[error(
        "rank {rank} has a world of {got} ranks, another rank of {expected}; set WORLD_SIZE alike"
    )]
    WorldSizeMismatch {
        /// Rank of this process.
        rank: usize,
        /// World size of the rank that came first.
        expected: usize,
        /// World size of this process.
        got: usize,
    },
    /// Happens when ranks were told different ways to communicate.
    #[error("rank {rank} was started with {got}, another rank with {expected}; start all alike")]
    OptionsMismatch {
        /// Rank of this process.
        rank: usize,
        /// Transport and algorithm of the rank that came first.
        expected: String,
        /// Those of this process.
        got: String,
    },
    /// Happens when some ranks did not come to the rendezvous in time.
    #[error(
        "rank {rank} waited {timeout:?} at the rendezvous on {address} for rank(s) {missing:?}; \
         check that they were started with the same MASTER_ADDR and MASTER_PORT"
    )]
    RendezvousTimeout {
        /// Rank of this process.
        rank: usize,
        /// Address of the store.
        address: String,
        /// Ranks that did not come.
        missing: Vec<usize>,
        /// The time allowed.
        timeout: Duration,
    },
    /// Happens when a key of the store did not appear before the deadline.
    #[error("store at {address}: key {key:?} was not set within {timeout:?}")]
    StoreTimeout {
        /// Address of the store.
        address: String,
        /// The key waited for.
        key: String,
        /// The time allowed.
        timeout: Duration,
    },
    /// Happens when the store cannot be reached or its answer is not understood.
    #[error("store at {address}: {detail}")]
    Store {
        /// Address of the store.
        address: String,
        /// What happened.
        detail: String,
    },
    /// Happens when the operating system refuses a socket or thread.
    #[error("cannot {what}: {detail}")]
    System {
        /// What was tried.
        what: String,
        /// What the operating system said.
        detail: String,
    },
    /// Happens when an invariant of this crate is broken: a bug of ours.
    #[error("internal error of bonfire-comm ({detail}); please report it")]
    Internal {
        /// What was found.
        detail: String,
    },
}

fn list(names: &[&'static str]) -> String {
    names.join(", ")
}

impl CommError {
    /// Whether the operating system said that an address is in use.
    pub(crate) fn is_address_in_use(&self) -> bool {
        let said = std::io::Error::from_raw_os_error(libc::EADDRINUSE).to_string();
        matches!(self, Self::System { detail, .. } if *detail == said)
    }

    /// Says of a death in which call `rank` heard of it.
    pub(crate) fn heard_in(self, rank: usize, call: impl fmt::Display) -> Self {
        match self {
            Self::Died { rank: dead, detail } => {
                Self::Died { rank: dead, detail: format!("{detail}; rank {rank} was in {call}") }
            }
            other => other,
        }
    }

    /// Adds what a user can do about what the operating system said.
    pub(crate) fn with_remedy(self, remedy: &str) -> Self {
        match self {
            Self::System { what, detail } => {
                Self::System { what, detail: format!("{detail}; {remedy}") }
            }
            other => other,
        }
    }

    pub(crate) fn system(what: impl Into<String>, error: &std::io::Error) -> Self {
        Self::System { what: what.into(), detail: error.to_string() }
    }
}
