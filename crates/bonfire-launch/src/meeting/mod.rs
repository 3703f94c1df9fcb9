//! How the launchers of several nodes become one run, and stay one.
//!
//! One launcher hosts the [`Store`] that the ranks will use too, and leads the meeting in it. A run is a
//! sequence of *attempts*. To each, every node hands in a card; the host says who takes part and in which
//! order. An attempt is over when one node says why, or when the host sees that a node is gone: its
//! connection holds a leased key. Then all nodes end their ranks and come to the next attempt, or leave.

mod card;
mod host;

pub(crate) use card::{Card, Over, Verdict};

use crate::cause::RankFailure;
use crate::count::NodeCount;
use crate::error::LaunchError;
use bonfire_comm::{CommError, Store, StoreOptions, StoreServer};
use host::Host;
use nix::sys::signal::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Time between two words on what is waited for.
const TELL: Duration = Duration::from_secs(10);
/// Time that nodes get to say what they have seen of a failure.
const CAUSES: Duration = Duration::from_secs(10);
/// Longest attempt to connect, with the look-up of a name, between two looks for signals.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest wait at a time, between two looks for signals.
const SLICE: Duration = Duration::from_millis(100);

/// How nodes meet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MeetingConfig {
    pub(crate) nodes: NodeCount,
    /// How long the host waits for the least number of nodes.
    pub(crate) join_timeout: Duration,
    /// How long it waits for more once they are there.
    pub(crate) last_call: Duration,
}

/// Where nodes meet, and as whom.
pub(crate) struct Invitation {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) run_id: String,
    pub(crate) token: Option<String>,
    /// Place of this node; `None` takes places by arrival.
    pub(crate) node_rank: Option<usize>,
    pub(crate) nproc: usize,
}

/// This node in the meeting. Dropping it is the farewell.
pub(crate) struct Member {
    store: Store,
    // Held, not used: its end tells the host that this node is gone.
    _alive: Store,
    card: Card,
    attempt: u32,
    host: Option<Host>,
}

impl Member {
    /// Hosts the meeting, or connects to it.
    ///
    /// # Errors
    /// [`LaunchError::Store`] when nobody can be reached; [`LaunchError::Interrupted`].
    pub(crate) fn enter(
        invitation: &Invitation,
        config: MeetingConfig,
        interrupted: &mut dyn FnMut() -> Option<Signal>,
    ) -> Result<Self, LaunchError> {
        let Invitation { host, port, run_id, token, node_rank, nproc } = invitation;
        let options =
            StoreOptions { token: token.clone(), run_id: run_id.clone(), restart_count: None };
        let server = bind(host, *port, *node_rank, config.nodes, &options)?;
        // The host may not be known by its name to itself.
        let host = match server.as_ref().map(StoreServer::address) {
            Some(address) if address.ip().is_unspecified() => "127.0.0.1",
            _ => host,
        };
        let mut told = Instant::now();
        let limit = Instant::now() + config.join_timeout;
        let mut connect = || loop {
            let left = limit.saturating_duration_since(Instant::now());
            match Store::connect(host, *port, &options, left.min(CONNECT)) {
                Err(CommError::Store { .. }) if Instant::now() < limit => {
                    if let Some(signal) = interrupted() {
                        return Err(LaunchError::Interrupted { signal });
                    }
                    if told.elapsed() >= TELL {
                        told = Instant::now();
                        tracing::info!("waiting for the node that hosts {host}:{port}");
                    }
                }
                other => return Ok(other?.with_timeout(Duration::from_secs(10))),
            }
        };
        let (store, alive) = (connect()?, connect()?);
        // The host says whose rendezvous it is, not who comes first.
        if server.is_some() {
            store.set(Keys::RUN, run_id.as_bytes())?;
        }
        let run = store.get(Keys::RUN, Duration::from_secs(10))?;
        if run != run_id.as_bytes() {
            let other = String::from_utf8_lossy(&run);
            let reason = format!(
                "the rendezvous at {} belongs to run {other:?}, and this node was started for \
                 {run_id:?}: give all nodes of a run the same --rdzv-id, and each run its own port",
                store.address()
            );
            return Err(LaunchError::Meeting { reason });
        }
        let id = store.add(Keys::ARRIVED, 1)?.cast_unsigned();
        alive.lease(&Keys::alive(id), &[])?;
        let host = server.map(|server| Host::start(server, &options, config, id)).transpose()?;
        let card = Card {
            id,
            node_rank: *node_rank,
            nproc: *nproc,
            nodes: config.nodes.to_string(),
            machine: machine(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(Self { store, _alive: alive, card, attempt: 0, host })
    }

    /// Comes to the next attempt, and waits until it is formed.
    ///
    /// # Errors
    /// [`LaunchError::Meeting`] when the host says why there is none; [`LaunchError::Interrupted`].
    pub(crate) fn join(
        &mut self,
        interrupted: &mut dyn FnMut() -> Option<Signal>,
    ) -> Result<(u32, Vec<Card>), LaunchError> {
        let mut attempt = self.current_attempt()?.max(self.attempt);
        loop {
            // A run that has its nodes has room after the attempt at hand, if at all.
            let stands = read::<Verdict>(&self.store, &Keys::verdict(attempt))?;
            if matches!(stands, Some(Verdict::Formed(_))) {
                attempt += 1;
            }
            let number = self.store.add(&Keys::count(attempt), 1)?.cast_unsigned();
            write(&self.store, &Keys::card(attempt, number), &self.card)?;
            match self.await_verdict(attempt, interrupted)? {
                Verdict::Refused(reason) => return Err(LaunchError::Meeting { reason }),
                Verdict::Formed(cards) if cards.iter().any(|card| card.id == self.card.id) => {
                    self.attempt = attempt + 1;
                    return Ok((attempt, cards));
                }
                Verdict::Formed(_) => {
                    tracing::info!("the run has its nodes; waiting until one is lost");
                }
            }
        }
    }

    fn current_attempt(&self) -> Result<u32, LaunchError> {
        let bytes = self.store.get(Keys::ATTEMPT, Duration::from_secs(10))?;
        Ok(bytes.try_into().map_or(0, u32::from_le_bytes))
    }

    fn await_verdict(
        &self,
        attempt: u32,
        interrupted: &mut dyn FnMut() -> Option<Signal>,
    ) -> Result<Verdict, LaunchError> {
        loop {
            match self.store.get(&Keys::verdict(attempt), SLICE) {
                Ok(bytes) => return Ok(parse(&self.store, &bytes)?),
                Err(CommError::StoreTimeout { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(reason) = self.store.try_get(&Keys::refused(self.card.id))? {
                let reason = String::from_utf8_lossy(&reason).into_owned();
                return Err(LaunchError::Meeting { reason });
            }
            if let Some(signal) = interrupted() {
                return Err(LaunchError::Interrupted { signal });
            }
        }
    }

    /// Whether ranks of another node of an attempt still run.
    pub(crate) fn is_anyone_at_work(
        &self,
        attempt: u32,
        cards: &[Card],
    ) -> Result<bool, CommError> {
        for card in cards.iter().filter(|card| !self.is(card)) {
            let is_done = self.store.try_get(&Keys::done(attempt, card.id))?.is_some();
            if !is_done && self.store.try_get(&Keys::alive(card.id))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an attempt is over, and why.
    pub(crate) fn over(&self, attempt: u32) -> Result<Option<Over>, CommError> {
        read(&self.store, &Keys::over(attempt))
    }

    /// Ends an attempt; returns why it is over, which another node may have said before.
    pub(crate) fn end(&self, attempt: u32, over: &Over) -> Result<Over, CommError> {
        end(&self.store, attempt, over)
    }

    /// Says that all ranks of this node have finished.
    pub(crate) fn done(&self, attempt: u32) -> Result<(), CommError> {
        self.store.set(&Keys::done(attempt, self.card.id), &[])
    }

    /// Tells the others what this node has seen of a failure, and hears what they have; also which node
    /// is gone without a word.
    pub(crate) fn exchange_causes(
        &self,
        attempt: u32,
        cards: &[Card],
        own: Option<RankFailure>,
        wait: Duration,
    ) -> Result<(Vec<RankFailure>, Option<usize>), CommError> {
        write(&self.store, &Keys::cause(attempt, self.card.id), &own)?;
        let limit = Instant::now() + wait.max(CAUSES);
        let mut causes: Vec<RankFailure> = own.into_iter().collect();
        let mut lost = None;
        for (node, card) in cards.iter().enumerate().filter(|(_, card)| !self.is(card)) {
            let told = || read::<Option<RankFailure>>(&self.store, &Keys::cause(attempt, card.id));
            loop {
                // ORDER: a node says what it has seen before it leaves.
                let is_alive = self.store.try_get(&Keys::alive(card.id))?.is_some();
                match told()? {
                    Some(cause) => {
                        causes.extend(cause);
                        break;
                    }
                    None if !is_alive => {
                        lost.get_or_insert(node);
                        break;
                    }
                    None if Instant::now() >= limit => break,
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        }
        Ok((causes, lost))
    }

    /// Whether a card is this node's.
    pub(crate) fn is(&self, card: &Card) -> bool {
        card.id == self.card.id
    }

    /// Whether this node hosts the store of the run.
    pub(crate) fn is_host(&self) -> bool {
        self.host.is_some()
    }
}

/// Listens where the nodes meet, if this node is the one to: the first where places are given, and where
/// they are not, one whose address it is and that is there first.
fn bind(
    host: &str,
    port: u16,
    node_rank: Option<usize>,
    nodes: NodeCount,
    options: &StoreOptions,
) -> Result<Option<StoreServer>, LaunchError> {
    if node_rank.is_some_and(|rank| rank > 0) {
        return Ok(None);
    }
    // A name may become known later; who is told its place hosts nonetheless.
    let named = (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let mut addresses: Vec<SocketAddr> = named.unwrap_or_default();
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let is_name = host.parse::<IpAddr>().is_err() && host != "localhost";
    if is_name && nodes.max > 1 && addresses.iter().any(|address| address.ip().is_loopback()) {
        // Many machines know their own name by an address that only they have.
        addresses.insert(0, everywhere);
    }
    if node_rank.is_some() {
        // The name may be that of an address translation.
        addresses.push(everywhere);
    }
    let mut failure = None;
    for address in addresses {
        match StoreServer::bind(address, options) {
            Ok(server) => return Ok(Some(server)),
            Err(error) => {
                tracing::debug!(%address, %error, "this node cannot host the rendezvous here");
                failure.get_or_insert(error);
            }
        }
    }
    match (node_rank, failure) {
        (Some(_), Some(error)) => Err(LaunchError::Meeting {
            reason: format!(
                "{error}; another program or run has the port: end it, or give all nodes another \
                 --master-port"
            ),
        }),
        _ => Ok(None),
    }
}

/// Names of what lies in the store. The ranks' own keys begin with their session.
struct Keys;

impl Keys {
    const RUN: &str = "launch/run";
    const ARRIVED: &str = "launch/arrived";
    const ATTEMPT: &str = "launch/attempt";

    fn alive(id: u64) -> String {
        format!("launch/alive/{id}")
    }

    /// Why a node may not take part.
    fn refused(id: u64) -> String {
        format!("launch/refused/{id}")
    }

    fn count(attempt: u32) -> String {
        format!("launch/{attempt}/count")
    }

    fn card(attempt: u32, number: u64) -> String {
        format!("launch/{attempt}/card/{number}")
    }

    fn verdict(attempt: u32) -> String {
        format!("launch/{attempt}/verdict")
    }

    fn over(attempt: u32) -> String {
        format!("launch/{attempt}/over")
    }

    fn done(attempt: u32, id: u64) -> String {
        format!("launch/{attempt}/done/{id}")
    }

    fn cause(attempt: u32, id: u64) -> String {
        format!("launch/{attempt}/cause/{id}")
    }
}

fn counter(bytes: Vec<u8>) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn write<T: Serialize>(store: &Store, key: &str, value: &T) -> Result<(), CommError> {
    store.set(key, &encode(store, value)?)
}

fn encode<T: Serialize>(store: &Store, value: &T) -> Result<Vec<u8>, CommError> {
    let failed = |error: serde_json::Error| CommError::Store {
        address: store.address(),
        detail: format!("a message cannot be written: {error}"),
    };
    serde_json::to_vec(value).map_err(failed)
}

fn read<T: DeserializeOwned>(store: &Store, key: &str) -> Result<Option<T>, CommError> {
    store.try_get(key)?.map(|bytes| parse(store, &bytes)).transpose()
}

fn parse<T: DeserializeOwned>(store: &Store, bytes: &[u8]) -> Result<T, CommError> {
    serde_json::from_slice(bytes).map_err(|error| CommError::Store {
        address: store.address(),
        detail: format!(
            "another node speaks otherwise, is its bonfire of another version? ({error})"
        ),
    })
}

fn end(store: &Store, attempt: u32, over: &Over) -> Result<Over, CommError> {
    let stands = store.compare_set(&Keys::over(attempt), &[], &encode(store, over)?)?;
    parse(store, &stands)
}

/// The name of this machine.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
