//! The rendezvous: from environment variables to a connected world.

mod options;

pub use options::InitOptions;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::group::deadline_after;
use crate::host_engine::{HostEngine, Plan};
use crate::membership::Membership;
use crate::mesh::{MeshConnector, MeshListener};
use crate::presence::{Presence, Seat};
use crate::store::{ConnectError, Endpoint, RETRY, Scope};
use crate::token::{self, TokenFile, TokenSource};
use crate::wire::{Credentials, Role, Verdict};
use crate::{
    CommError, EngineKind, ProcessGroup, RankEnv, Result, Store, StoreOptions, StoreServer,
    Transport,
};

/// Time without which no further attempt is made: it would fail for want of time, and say so.
const ATTEMPT: Duration = Duration::from_millis(100);
/// Time that the host of a failed session gives ranks that come a little later.
const LATE: Duration = Duration::from_secs(1);
/// Time for an earlier run to release the store's port.
const PORT_RELEASE: Duration = Duration::from_secs(10);
const PORT_REMEDY: &str = "another program or an earlier run has the port; end it, or give every \
                           rank another MASTER_PORT or BONFIRE_STORE_PORT";

/// Meets the other ranks at the store and connects to them: engine `host`, and over that engine
/// `nccl` where it is chosen. A world of one rank needs nobody and gets engine `single`, or `nccl`.
///
/// # Collective
/// Called by every rank of the run; blocks until all are there.
///
/// # Errors
/// [`CommError::RendezvousTimeout`] names the ranks that did not come, [`CommError::Refused`] a
/// wrong token, [`CommError::NoToken`] several machines without one,
/// [`CommError::WorldSizeMismatch`] and [`CommError::OptionsMismatch`] ranks that were started
/// differently.
pub fn init_process_group(env: &RankEnv, options: InitOptions) -> Result<ProcessGroup> {
    let engine = options.chosen_engine()?;
    #[cfg(feature = "mpi")]
    if engine == EngineKind::Mpi {
        return crate::mpi::init_rank(env, &options);
    }
    let world = host_world(env, &options, engine)?;
    over_devices(world, &options, engine, env.local_rank)
}

/// Makes a group of this process alone, on the engine that the options choose.
///
/// # Errors
/// [`CommError::EngineUnavailable`] when it cannot be used here.
pub fn init_single(options: &InitOptions) -> Result<ProcessGroup> {
    let engine = options.chosen_engine()?;
    over_devices(ProcessGroup::single_engine(options.timeout), options, engine, 0)
}

/// Connects the devices of ranks that have met, if the engine does.
fn over_devices(
    world: HostEngine,
    options: &InitOptions,
    engine: EngineKind,
    local_rank: usize,
) -> Result<ProcessGroup> {
    #[cfg(feature = "cuda")]
    if engine == EngineKind::Nccl {
        let gpu = options.gpu.unwrap_or(local_rank);
        return crate::nccl::open(world, gpu, options.timeout);
    }
    let _ = (engine, local_rank);
    Ok(ProcessGroup::from_engine(Arc::new(world), "world", options.timeout))
}

/// Meets the other ranks, over host memory.
pub(crate) fn host_world(
    env: &RankEnv,
    options: &InitOptions,
    engine: EngineKind,
) -> Result<HostEngine> {
    let transport = options.transport()?;
    if env.world_size == 1 {
        return Ok(ProcessGroup::single_engine(options.timeout));
    }
    let deadline = deadline_after(options.meeting_time());
    let port = env.resolved_store_port()?;
    let source = TokenSource::of(env, port, options.insecure)?;
    let host = (!env.store_hosted).then_some(0);
    let hosted = match host {
        Some(rank) if rank == env.rank => Some(host_store(env, port, &source, deadline)?),
        _ => None,
    };
    let ways =
        format!("engine {engine}, transport {transport} and algorithm {}", options.algorithm);
    let rendezvous = Rendezvous { env, port, source: &source, options, ways, deadline };
    let (endpoint, store, scope) = rendezvous.enter(hosted.as_ref())?;
    // The file stays until everybody has met, which is the end of this function.
    let (server, _token_file) =
        hosted.map_or((None, None), |hosted| (Some(hosted.server), hosted.token_file));
    let listener = MeshListener::bind(listen_address(env, &store)?, endpoint.credentials)?;
    let stream = endpoint
        .dial_patiently(Role::Presence, 0, deadline, || false)
        .map_err(|error| rendezvous.not_connected(&endpoint, &error))?;
    let seat = Seat { rank: env.rank, world_size: env.world_size, scope: scope.clone(), host };
    let membership: Arc<dyn Membership> =
        Arc::new(Presence::join(seat, store.clone(), stream, server)?);
    let met = rendezvous.meet(&store.with_prefix(&scope.0), &listener);
    let world =
        met.map_err(|error| membership.cause_of(error)).and_then(|(addresses, machines)| {
            let shared = (transport == Transport::Auto).then(|| store.with_prefix(&scope.0));
            let connector =
                MeshConnector::new(listener, addresses, machines, membership.clone(), shared);
            let plan = Plan {
                identity: "world",
                members: (0..env.world_size).collect(),
                timeout: options.timeout,
                algorithm: options.algorithm,
                tuning: None,
            };
            HostEngine::connect(plan, Arc::new(connector), membership.clone())
        });
    match world {
        Ok(engine) => Ok(engine),
        Err(error) => {
            if membership.failure().is_none() {
                membership.abort(&error.to_string());
            }
            if host == Some(env.rank) {
                rendezvous.wait_for_late_ranks(&store, &scope);
            }
            Err(error)
        }
    }
}

/// The store that this process hosts until it is part of its presence.
struct Hosted {
    server: StoreServer,
    credentials: Credentials,
    token_file: Option<TokenFile>,
}

fn host_store(env: &RankEnv, port: u16, source: &TokenSource, deadline: Instant) -> Result<Hosted> {
    let (token, token_file) = match source {
        TokenSource::Given(token) => (Some(token.clone()), None),
        TokenSource::Open => (None, None),
        TokenSource::File(path) => {
            let file = TokenFile::create(path)?;
            (Some(file.token().to_owned()), Some(file))
        }
    };
    let options = StoreOptions {
        token: token.clone(),
        run_id: env.run_id.clone(),
        restart_count: Some(env.restart_count),
    };
    let limit = deadline.min(Instant::now() + PORT_RELEASE);
    let mut told = false;
    let server = loop {
        match bind_store(env, port, &options) {
            Ok(server) => break server,
            Err(error) if !error.is_address_in_use() => return Err(error),
            Err(error) if Instant::now() >= limit => return Err(error.with_remedy(PORT_REMEDY)),
            Err(error) => {
                if !told {
                    tracing::warn!(%error, "waiting for the port to become free");
                    told = true;
                }
                std::thread::sleep(RETRY);
            }
        }
    };
    let credentials = Credentials::new(token.as_deref(), &env.run_id, env.restart_count);
    Ok(Hosted { server, credentials, token_file })
}

/// Listens on the master address, or on all addresses when that is not one of this machine's own
/// (behind address translation).
fn bind_store(env: &RankEnv, port: u16, options: &StoreOptions) -> Result<StoreServer> {
    let named = (env.master_addr.as_str(), port)
        .to_socket_addrs()
        .map_err(|error| {
            CommError::system(format!("resolve MASTER_ADDR {:?}", env.master_addr), &error)
        })?
        .next()
        .map(|address| StoreServer::bind(address, options));
    match named {
        Some(Err(_)) if !env.is_loopback() => {
            StoreServer::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), options)
        }
        Some(result) => result,
        None => Err(CommError::System {
            what: format!("resolve MASTER_ADDR {:?}", env.master_addr),
            detail: "the name has no address".into(),
        }),
    }
}

/// The address on which other ranks reach this one.
fn listen_address(env: &RankEnv, store: &Store) -> Result<SocketAddr> {
    let local = store
        .local_address()
        .map_err(|error| CommError::system("find this machine's address", &error))?;
    let ip = match local.ip() {
        IpAddr::V4(_) if env.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) if env.is_loopback() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, 0))
}

/// A rank on its way into the world.
struct Rendezvous<'a> {
    env: &'a RankEnv,
    port: u16,
    source: &'a TokenSource,
    options: &'a InitOptions,
    /// What all ranks must have been told alike, in words.
    ways: String,
    deadline: Instant,
}

impl Rendezvous<'_> {
    /// Connects to the store of *this* session, which may have to wait until the store of an
    /// earlier one on the same port has closed.
    fn enter(&self, hosted: Option<&Hosted>) -> Result<(Endpoint, Store, Scope)> {
        loop {
            match self.try_enter(hosted)? {
                Entry::In(endpoint, store, scope) => return Ok((endpoint, store, scope)),
                Entry::Later(reason) if self.deadline < Instant::now() + ATTEMPT => {
                    return Err(reason);
                }
                Entry::Later(_) => std::thread::sleep(RETRY),
            }
        }
    }

    fn try_enter(&self, hosted: Option<&Hosted>) -> Result<Entry> {
        let env = self.env;
        let credentials = match (hosted, self.source) {
            (Some(hosted), _) => hosted.credentials,
            (None, TokenSource::Given(token)) => self.credentials(Some(token)),
            (None, TokenSource::Open) => self.credentials(None),
            (None, TokenSource::File(path)) => match token::read(path)? {
                Some(token) => self.credentials(Some(&token)),
                None => return Ok(Entry::Later(self.absent("the store's host has made no token"))),
            },
        };
        let (host, port, rank) = (env.master_addr.clone(), self.port, env.rank);
        let endpoint = Endpoint { host, port, credentials, rank };
        let store = match Store::dial(&endpoint, self.options.timeout, self.deadline) {
            Ok(store) => store,
            Err(error) if self.is_final(&error) => return Err(endpoint.failed(&error)),
            Err(error) => return Ok(Entry::Later(self.not_connected(&endpoint, &error))),
        };
        // How often this rank has joined tells the sessions of a run apart.
        let joined = format!("{}/{}/joined/{}", env.run_id, env.restart_count, env.rank);
        match store.add(&joined, 1) {
            Ok(generation) if generation == 1 || env.store_hosted => {
                let scope = format!("{}/{}/{generation}", env.run_id, env.restart_count);
                Ok(Entry::In(endpoint, store, Scope(scope)))
            }
            Ok(_) => Ok(Entry::Later(CommError::Refused {
                address: endpoint.address(),
                rank,
                reason: format!(
                    "a process has joined as rank {rank} already; is RANK set differently in \
                     every process, and has an earlier run on this port ended?"
                ),
            })),
            Err(error) => Ok(Entry::Later(error)),
        }
    }

    fn credentials(&self, token: Option<&str>) -> Credentials {
        Credentials::new(token, &self.env.run_id, self.env.restart_count)
    }

    fn not_connected(&self, endpoint: &Endpoint, error: &ConnectError) -> CommError {
        match error {
            ConnectError::Unreachable(error) => self.absent(&format!("cannot connect: {error}")),
            other => endpoint.failed(other),
        }
    }

    fn absent(&self, detail: &str) -> CommError {
        let host = if self.env.store_hosted { "the launcher" } else { "rank 0" };
        CommError::Store {
            address: format!("{}:{}", self.env.master_addr, self.port),
            detail: format!("{detail}; is {host} running?"),
        }
    }

    /// A token from the environment does not get better by waiting; one from a file may be that
    /// of an earlier run.
    fn is_final(&self, error: &ConnectError) -> bool {
        match error {
            ConnectError::Refused(Verdict::WrongToken) => {
                !matches!(self.source, TokenSource::File(_))
            }
            ConnectError::Refused(verdict) => *verdict == Verdict::WrongVersion,
            ConnectError::Unreachable(_) | ConnectError::Unanswered(_) => false,
        }
    }

    /// Tells the others where this rank listens, and hears where they do.
    fn meet(
        &self,
        store: &Store,
        listener: &MeshListener,
    ) -> Result<(Vec<SocketAddr>, Arc<[u64]>)> {
        let env = self.env;
        let world = (env.world_size as u64).to_le_bytes();
        let agreed = store.compare_set("world_size", &[], &world)?;
        if agreed != world {
            let expected = agreed.try_into().map_or(0, |bytes| u64::from_le_bytes(bytes) as usize);
            return Err(CommError::WorldSizeMismatch {
                rank: env.rank,
                expected,
                got: env.world_size,
            });
        }
        let agreed = store.compare_set("ways", &[], self.ways.as_bytes())?;
        if agreed != self.ways.as_bytes() {
            return Err(CommError::OptionsMismatch {
                rank: env.rank,
                expected: String::from_utf8_lossy(&agreed).into_owned(),
                got: self.ways.clone(),
            });
        }
        let card = format!("{} {}", listener.address(), self.options.machine());
        store.set(&card_key(env.rank), card.as_bytes())?;
        let mut addresses = Vec::with_capacity(env.world_size);
        let mut machines = Vec::with_capacity(env.world_size);
        for rank in 0..env.world_size {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let card = match store.get(&card_key(rank), left) {
                Err(CommError::StoreTimeout { .. }) => return Err(self.incomplete(store)),
                other => other?,
            };
            let (address, machine) = parse_card(&card).ok_or_else(|| CommError::Store {
                address: store.address(),
                detail: format!("rank {rank} left an address that does not parse"),
            })?;
            addresses.push(address);
            machines.push(machine);
        }
        Ok((addresses, machines.into()))
    }

    /// Gives ranks that are still on their way the time to hear from this host why the session
    /// has failed.
    fn wait_for_late_ranks(&self, store: &Store, scope: &Scope) {
        let limit = self.deadline.min(Instant::now() + LATE);
        let is_late = |rank| !matches!(store.try_get(&scope.present_key(rank)), Ok(Some(_)));
        while (0..self.env.world_size).any(is_late) && Instant::now() < limit {
            std::thread::sleep(RETRY);
        }
    }

    /// Finds out who did not come.
    fn incomplete(&self, store: &Store) -> CommError {
        let is_missing =
            |rank: &usize| store.try_get(&card_key(*rank)).is_ok_and(|card| card.is_none());
        CommError::RendezvousTimeout {
            rank: self.env.rank,
            address: store.address(),
            missing: (0..self.env.world_size).filter(is_missing).collect(),
            timeout: self.options.meeting_time(),
        }
    }
}

/// The outcome of an attempt to enter.
enum Entry {
    In(Endpoint, Store, Scope),
    Later(CommError),
}

fn card_key(rank: usize) -> String {
    format!("rank/{rank}")
}

fn parse_card(card: &[u8]) -> Option<(SocketAddr, u64)> {
    let (address, machine) = std::str::from_utf8(card).ok()?.split_once(' ')?;
    Some((address.parse().ok()?, machine.parse().ok()?))
}

#[cfg(test)]
mod tests;
