use std::sync::Arc;
use std::time::Duration;

use crate::device_buffer::DeviceEvent;
use crate::host_engine::HostEngine;
use crate::{DType, Operation};

/// A library that moves bytes between devices, and the device that this rank has. Errors are the
/// library's own words.
///
/// All but [`unique_id`](Self::unique_id) is called by the device thread alone. Nothing blocks on a
/// device.
pub(crate) trait Library: Send + 'static {
    /// Connections between the ranks of a group, and a stream of the device for their operations.
    type Comm;

    /// Name under which a user chooses the engine.
    const ENGINE: &'static str;
    /// Name of the library in messages.
    const NAME: &'static str;
    /// How its own log is turned on.
    const LOG: &'static str;

    /// Makes the name under which the ranks of a group find each other.
    fn unique_id() -> Result<Vec<u8>, String>;

    /// Prepares the calling thread for all other calls.
    fn attach(&self) -> Result<(), String>;

    /// Begins to connect the ranks of a group.
    fn join(&self, seat: &Seat<'_>) -> Result<Self::Comm, String>;

    /// Whether the calls made so far have come to their end on the host.
    fn progress(&self, comm: &Self::Comm) -> Progress;

    /// Makes the stream wait for an event.
    fn wait_for(&self, comm: &Self::Comm, event: &dyn DeviceEvent) -> Result<(), String>;

    /// Puts an operation on the stream. May not have come to its end: see
    /// [`progress`](Self::progress).
    fn enqueue(
        &self,
        comm: &Self::Comm,
        operation: Operation,
        memory: Memory,
    ) -> Result<(), String>;

    /// Marks the end of what is on the stream.
    fn record(&self, comm: &Self::Comm) -> Result<Arc<dyn DeviceEvent>, String>;

    /// Time of the device between two marks that it has come to.
    fn elapsed(&self, from: &dyn DeviceEvent, to: &dyn DeviceEvent) -> Option<Duration>;

    /// Ends what is under way on all communicators of the device at once, since one may wait for
    /// another there; without the other ranks. Tells whether it is certain that the device uses no
    /// buffer any more.
    fn abort(&self, comms: Vec<Self::Comm>) -> bool;

    /// Begins to give connections back on which nothing is under way. See
    /// [`progress`](Self::progress); then it is to be [closed](Self::close).
    fn leave(&self, comm: &Self::Comm) -> Result<(), String>;

    /// Ends a communicator that has been left.
    fn close(&self, comm: Self::Comm);
}

/// A rank's place in a group that is made.
#[allow(dead_code, reason = "each library needs some of it")]
pub(crate) struct Seat<'a> {
    /// What [`Library::unique_id`] returned to rank 0.
    pub(crate) id: &'a [u8],
    pub(crate) identity: &'a str,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The same ranks over host memory.
    pub(crate) companion: &'a Arc<HostEngine>,
}

/// What an operation works on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) pointer: u64,
    pub(crate) dtype: DType,
    pub(crate) len: usize,
}

/// How far the library's host side is.
#[allow(dead_code, reason = "not every library is slow")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing is under way.
    Settled,
    /// A call has not come to its end.
    Busy,
    /// The library, or the network under it, has failed.
    Failed(String),
}
