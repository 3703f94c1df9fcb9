//! Byte streams between the ranks of a group: pipes in shared memory within a machine, TCP
//! connections between machines.

mod local;
#[allow(unsafe_code, reason = "poll(2) has no safe form in std or socket2")]
mod tcp;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use local::LocalConnector;
pub(crate) use tcp::tune;

use crate::Result;
use crate::shm::Segment;

/// How often a wait for both kinds of links looks at the other kind.
const SLICE: Duration = Duration::from_micros(200);

/// The way to another rank.
enum Way {
    /// There is none: the rank itself.
    Nowhere,
    /// Pipes in the segment; the number is the peer's place there.
    Shared(usize),
    /// A connection.
    Stream(TcpStream),
}

/// The place of a rank among those of its machine.
pub(crate) struct Neighbours {
    pub(crate) segment: Arc<Segment>,
    /// Ranks of the group by their place in the segment, in ascending order.
    pub(crate) ranks: Vec<usize>,
    /// Place of this rank.
    pub(crate) place: usize,
}

/// Non-blocking duplex byte streams to every other rank of a group.
///
/// `Ok(0)` means "would block"; a closed stream is an error of kind `UnexpectedEof`,
/// `ConnectionReset` or `BrokenPipe`.
pub(crate) struct Links {
    ways: Vec<Way>,
    neighbours: Option<Arc<Neighbours>>,
}

impl Links {
    /// Links of a group with one rank: there is nobody to talk to.
    pub(crate) fn none() -> Self {
        Self { ways: vec![Way::Nowhere], neighbours: None }
    }

    /// Takes the connections to the ranks that are no neighbours, by rank.
    pub(crate) fn new(
        neighbours: Option<Neighbours>,
        streams: Vec<Option<TcpStream>>,
    ) -> io::Result<Self> {
        let mut ways = Vec::with_capacity(streams.len());
        for (rank, stream) in streams.into_iter().enumerate() {
            let place = neighbours.as_ref().and_then(|near| near.place_of(rank));
            let way = match (stream, place) {
                (Some(stream), _) => {
                    stream.set_nonblocking(true)?;
                    Way::Stream(stream)
                }
                (None, Some(place)) => Way::Shared(place),
                (None, None) => Way::Nowhere,
            };
            ways.push(way);
        }
        Ok(Self { ways, neighbours: neighbours.map(Arc::new) })
    }

    /// The ranks of this machine, if they share memory.
    pub(crate) fn neighbours(&self) -> Option<&Arc<Neighbours>> {
        self.neighbours.as_ref()
    }

    fn way(&self, peer: usize) -> io::Result<(&Way, Option<&Neighbours>)> {
        let way = self.ways.get(peer).ok_or(io::ErrorKind::NotConnected)?;
        Ok((way, self.neighbours.as_deref()))
    }

    /// Hands bytes over, as many as fit.
    pub(crate) fn try_send(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.way(peer)? {
            (Way::Stream(stream), _) => tcp::try_send(stream, parts),
            (Way::Shared(place), Some(near)) => near.try_send(*place, parts),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Takes the bytes that are there.
    pub(crate) fn try_recv(
        &mut self,
        peer: usize,
        parts: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        match self.way(peer)? {
            (Way::Stream(stream), _) => tcp::try_recv(stream, parts),
            (Way::Shared(place), Some(near)) => near.try_recv(*place, parts),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sleeps until bytes can be sent to one of `sends` or received from one of `receives`, or
    /// `timeout` is over. May return early without a reason.
    pub(crate) fn wait(
        &mut self,
        sends: &[usize],
        receives: &[usize],
        timeout: Duration,
    ) -> io::Result<()> {
        let streams = |ranks: &[usize]| -> Vec<&TcpStream> {
            let of = |rank: &usize| match self.ways.get(*rank) {
                Some(Way::Stream(stream)) => Some(stream),
                _ => None,
            };
            ranks.iter().filter_map(of).collect()
        };
        let places = |ranks: &[usize]| -> Vec<usize> {
            let of = |rank: &usize| match self.ways.get(*rank) {
                Some(Way::Shared(place)) => Some(*place),
                _ => None,
            };
            ranks.iter().filter_map(of).collect()
        };
        let (to, from) = (streams(sends), streams(receives));
        let far = !to.is_empty() || !from.is_empty();
        let Some(near) = &self.neighbours else { return tcp::wait(&to, &from, timeout) };
        let (near_to, near_from) = (places(sends), places(receives));
        if near_to.is_empty() && near_from.is_empty() && far {
            return tcp::wait(&to, &from, timeout);
        }
        near.wait(&near_to, &near_from, if far { timeout.min(SLICE) } else { timeout });
        if far { tcp::wait(&to, &from, Duration::ZERO) } else { Ok(()) }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Some(near) = &self.neighbours {
            near.segment.close(near.place);
        }
    }
}

impl Neighbours {
    /// The place of a rank of the group.
    pub(crate) fn place_of(&self, rank: usize) -> Option<usize> {
        let place = self.ranks.iter().position(|other| *other == rank)?;
        (place != self.place).then_some(place)
    }

    fn try_send(&self, to: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.segment.is_closed(to) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = self.segment.pipe(self.place, to).push(parts)?;
        if count > 0 {
            self.segment.notify(to);
        }
        Ok(count)
    }

    fn try_recv(&self, from: usize, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let pipe = self.segment.pipe(from, self.place);
        // ORDER: before the look at the pipe, so that what was written before the end is read.
        let closed = self.segment.is_closed(from);
        let count = pipe.pop(parts)?;
        if count > 0 {
            self.segment.notify(from);
        } else if closed && pipe.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(count)
    }

    fn wait(&self, sends: &[usize], receives: &[usize], timeout: Duration) {
        let segment = &self.segment;
        let idle = || {
            let blocked = |to: &usize| segment.pipe(self.place, *to).is_full();
            let silent = |from: &usize| segment.pipe(*from, self.place).is_empty();
            let gone = |place: &usize| segment.is_closed(*place);
            sends.iter().all(|to| blocked(to) && !gone(to))
                && receives.iter().all(|from| silent(from) && !gone(from))
        };
        segment.sleep(self.place, timeout, idle);
    }
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
    ) -> Result<Links>;

    /// A number per world rank that is equal for ranks on the same machine.
    fn machines(&self) -> Arc<[u64]>;

    /// Whether ranks of the same machine share memory.
    fn shares_memory(&self) -> bool;
}

/// Makes a world of one rank.
pub(crate) struct SingleConnector;

impl Connector for SingleConnector {
    fn engine(&self) -> &'static str {
        "single"
    }

    fn connect(&self, _: &str, _: &[usize], _: usize, _: Instant) -> Result<Links> {
        Ok(Links::none())
    }

    fn machines(&self) -> Arc<[u64]> {
        Arc::new([0])
    }

    fn shares_memory(&self) -> bool {
        false
    }
}
