//! Connections between the processes of a group.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use crate::links::{Connector, Links, Neighbours, tune};
use crate::membership::{LATCH_PERIOD, Membership};
use crate::shm::Segment;
use crate::store::{Acceptor, ConnectError, Endpoint};
use crate::sync::lock;
use crate::wire::{Credentials, Hello, Role};
use crate::{CommError, Result, Store};

/// Connections that may wait for their group to be made.
const MAX_WAITING: usize = 4096;

/// Connections that other ranks have made, until their group takes them.
#[derive(Default)]
struct Arrivals {
    streams: Mutex<HashMap<(u64, usize), TcpStream>>,
    changed: Condvar,
}

impl Arrivals {
    fn add(&self, stream: TcpStream, hello: &Hello) {
        let mut streams = lock(&self.streams);
        if hello.role == Role::Mesh && streams.len() < MAX_WAITING {
            streams.insert((hello.group, hello.rank as usize), stream);
            self.changed.notify_all();
        }
    }
}

/// The listener of this process, before it knows its peers.
pub(crate) struct MeshListener {
    acceptor: Acceptor,
    arrivals: Arc<Arrivals>,
    credentials: Credentials,
}

impl MeshListener {
    /// Listens on a free port of `address`.
    pub(crate) fn bind(mut address: SocketAddr, credentials: Credentials) -> Result<Self> {
        address.set_port(0);
        let failed = |error: std::io::Error| {
            CommError::system(format!("listen on {} for other ranks", address.ip()), &error)
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let arrivals = Arc::new(Arrivals::default());
        // The acceptor must not keep connections alive after the mesh is gone.
        let target: Weak<Arrivals> = Arc::downgrade(&arrivals);
        let handler = move |stream: TcpStream, hello: Hello| {
            if let Some(arrivals) = target.upgrade() {
                arrivals.add(stream, &hello);
            }
        };
        let acceptor = Acceptor::start(listener, credentials, true, handler).map_err(failed)?;
        Ok(Self { acceptor, arrivals, credentials })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }
}

/// Makes the links of the groups of a process.
pub(crate) struct MeshConnector {
    listener: MeshListener,
    /// Address of each rank of the world.
    addresses: Vec<SocketAddr>,
    machines: Arc<[u64]>,
    membership: Arc<dyn Membership>,
    /// Where the ranks of a machine tell each other of their memory; `None` when they use TCP.
    store: Option<Store>,
}

impl MeshConnector {
    pub(crate) fn new(
        listener: MeshListener,
        addresses: Vec<SocketAddr>,
        machines: Arc<[u64]>,
        membership: Arc<dyn Membership>,
        store: Option<Store>,
    ) -> Self {
        Self { listener, addresses, machines, membership, store }
    }

    /// Maps the memory that the ranks of this machine share, if there are others.
    ///
    /// The first of them makes it, under a path that only processes of the same user can open, and
    /// waits until the others have mapped it: its group, with which the path ends, may be dropped
    /// at once.
    fn neighbours(
        &self,
        identity: &str,
        members: &[usize],
        rank: usize,
        deadline: Instant,
    ) -> Result<Option<Neighbours>> {
        let Some(store) = &self.store else { return Ok(None) };
        let machine = |member: usize| self.machines[member];
        let own = machine(members[rank]);
        let ranks: Vec<usize> =
            (0..members.len()).filter(|r| machine(members[*r]) == own).collect();
        if ranks.len() == 1 {
            return Ok(None);
        }
        let key = format!("memory/{identity}/{own}");
        let failed = |error: io::Error| CommError::SharedMemory { rank, detail: error.to_string() };
        let place = ranks.iter().position(|other| *other == rank).unwrap_or(0);
        let segment = if place == 0 {
            let cookie = xxh3_64(format!("{key} {:?}", Instant::now()).as_bytes());
            let (segment, path) = Segment::create(ranks.len(), cookie).map_err(failed)?;
            store.set(&key, format!("{cookie} {path}").as_bytes())?;
            segment.arrive(place);
            self.await_arrivals(&segment, identity, &ranks, deadline)?;
            segment
        } else {
            let left = deadline.saturating_duration_since(Instant::now());
            let card = store.get(&key, left)?;
            let card = String::from_utf8_lossy(&card).into_owned();
            let parts = card.split_once(' ').and_then(|(c, path)| Some((c.parse().ok()?, path)));
            let damaged = || failed(io::Error::other(format!("its address {card:?} is damaged")));
            let (cookie, path) = parts.ok_or_else(damaged)?;
            let segment = Segment::open(path, ranks.len(), cookie)
                .map_err(|error| failed(io::Error::other(format!("{path}: {error}"))))?;
            segment.arrive(place);
            segment
        };
        Ok(Some(Neighbours { segment, ranks, place }))
    }

    /// Waits until all of `ranks`, of which this is the first, have mapped the memory.
    fn await_arrivals(
        &self,
        segment: &Segment,
        identity: &str,
        ranks: &[usize],
        deadline: Instant,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let missing = segment.wait_for_arrivals(0, left.min(LATCH_PERIOD));
            if missing.is_empty() {
                return Ok(());
            }
            if let Some(failure) = self.membership.failure() {
                return Err(failure);
            }
            if left.is_zero() {
                let missing: Vec<usize> = missing.iter().map(|place| ranks[*place]).collect();
                let missing = format!("rank(s) {missing:?} did not map the memory they share");
                return Err(timeout(identity, ranks[0], start, missing));
            }
        }
    }

    /// Connects to a rank that comes before this one in the group.
    fn dial(
        &self,
        identity: &str,
        rank: usize,
        member: usize,
        deadline: Instant,
    ) -> Result<TcpStream> {
        let address = self.addresses[member];
        let credentials = self.listener.credentials;
        let endpoint =
            Endpoint { host: address.ip().to_string(), port: address.port(), credentials, rank };
        let group = xxh3_64(identity.as_bytes());
        let has_failed = || self.membership.failure().is_some();
        let error = match endpoint.dial_patiently(Role::Mesh, group, deadline, has_failed) {
            Ok(stream) => return Ok(stream),
            Err(error @ ConnectError::Refused(_)) => return Err(endpoint.failed(&error)),
            Err(ConnectError::Unreachable(error) | ConnectError::Unanswered(error)) => error,
        };
        let operation = "creation of the group".to_owned();
        let cause = self.membership.cause_of_loss(member, identity, &operation);
        Err(cause.unwrap_or_else(|| CommError::LinkLost {
            group: identity.to_owned(),
            peer: member,
            operation,
            detail: format!("cannot connect to {address}: {error}"),
        }))
    }

    /// Waits for the connection of a rank that comes after this one in the group.
    fn take(
        &self,
        identity: &str,
        rank: usize,
        peer: usize,
        deadline: Instant,
    ) -> Result<TcpStream> {
        let group = xxh3_64(identity.as_bytes());
        let start = Instant::now();
        let mut streams = lock(&self.listener.arrivals.streams);
        loop {
            if let Some(stream) = streams.remove(&(group, peer)) {
                return Ok(stream);
            }
            if let Some(failure) = self.membership.failure() {
                return Err(failure);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing = format!("rank(s) [{peer}] did not connect");
                return Err(timeout(identity, rank, start, missing));
            }
            let wait = self.listener.arrivals.changed.wait_timeout(streams, left.min(LATCH_PERIOD));
            streams = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn timeout(identity: &str, rank: usize, start: Instant, missing: String) -> CommError {
    CommError::Timeout {
        group: identity.to_owned(),
        rank,
        operation: "creation of the group".into(),
        timeout: start.elapsed(),
        missing,
    }
}

impl Connector for MeshConnector {
    fn engine(&self) -> &'static str {
        "host"
    }

    fn connect(
        &self,
        identity: &str,
        members: &[usize],
        rank: usize,
        deadline: Instant,
    ) -> Result<Links> {
        if members.len() == 1 {
            return Ok(Links::none());
        }
        let near = self.neighbours(identity, members, rank, deadline)?;
        let mut streams: Vec<Option<TcpStream>> = Vec::with_capacity(members.len());
        for (peer, &member) in members.iter().enumerate() {
            let shares = near.as_ref().is_some_and(|near| near.place_of(peer).is_some());
            let stream = match peer.cmp(&rank) {
                _ if shares => None,
                std::cmp::Ordering::Less => Some(self.dial(identity, rank, member, deadline)?),
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Greater => Some(self.take(identity, rank, peer, deadline)?),
            };
            stream.iter().for_each(tune);
            streams.push(stream);
        }
        Links::new(near, streams)
            .map_err(|error| CommError::system("make a connection non-blocking", &error))
    }

    fn machines(&self) -> Arc<[u64]> {
        self.machines.clone()
    }

    fn shares_memory(&self) -> bool {
        self.store.is_some()
    }
}
