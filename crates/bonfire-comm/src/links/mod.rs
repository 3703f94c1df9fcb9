//! Byte streams between the ranks of a group.

mod local;
#[allow(unsafe_code, reason = "poll(2) has no safe form in std or socket2")]
mod tcp;

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use local::LocalConnector;
pub(crate) use tcp::{TcpLinks, tune};

use crate::Result;

/// Non-blocking duplex byte streams to every other rank of a group.
///
/// `Ok(0)` means "would block"; a closed stream is an error of kind `UnexpectedEof`,
/// `ConnectionReset` or `BrokenPipe`.
pub(crate) trait Links: Send {
    /// Hands bytes over, as many as fit.
    fn try_send(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Takes the bytes that are there.
    fn try_recv(&mut self, peer: usize, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sleeps until bytes can be sent to `send` or received from `recv`, or `timeout` is over.
    /// May return early without a reason.
    fn wait(
        &mut self,
        send: Option<usize>,
        recv: Option<usize>,
        timeout: Duration,
    ) -> io::Result<()>;
}

/// Makes the links of new groups.
pub(crate) trait Connector: Send + Sync {
    /// The name of the engine that uses these links.
    fn engine(&self) -> &'static str;

    /// Connects rank `rank` of the group `identity` with the others. `members` are world ranks.
    ///
    /// # Collective
    /// Called by all members.
    fn connect(
        &self,
        identity: &str,
        members: &[usize],
        rank: usize,
        deadline: Instant,
    ) -> Result<Box<dyn Links>>;

    /// A number per world rank that is equal for ranks on the same machine.
    fn machines(&self) -> Arc<[u64]>;
}

/// Links of a group with one rank: there is nobody to talk to.
pub(crate) struct NoLinks;

impl Links for NoLinks {
    fn try_send(&mut self, _: usize, _: &[IoSlice<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn try_recv(&mut self, _: usize, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn wait(&mut self, _: Option<usize>, _: Option<usize>, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a world of one rank.
pub(crate) struct SingleConnector;

impl Connector for SingleConnector {
    fn engine(&self) -> &'static str {
        "single"
    }

    fn connect(&self, _: &str, _: &[usize], _: usize, _: Instant) -> Result<Box<dyn Links>> {
        Ok(Box::new(NoLinks))
    }

    fn machines(&self) -> Arc<[u64]> {
        Arc::new([0])
    }
}
