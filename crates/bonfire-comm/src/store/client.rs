//! The client of the store.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::protocol::{Answer, Request};
use crate::group::deadline_after;
use crate::sync::lock;
use crate::wire::{
    Credentials, Hello, MAX_KEY_BYTES, MAX_VALUE_BYTES, Role, Verdict, read_frame, write_frame,
};
use crate::{CommError, Result, StoreOptions};

/// Pause between attempts to connect.
pub(crate) const RETRY: Duration = Duration::from_millis(20);
/// Time beyond a server-side wait in which the answer must have come.
const ANSWER_SLACK: Duration = Duration::from_secs(5);

/// A connection to a store. Clones share it; calls of clones take turns.
///
/// Every call has a deadline: that of [`Store::connect`], or the one given to [`Store::get`].
#[derive(Clone)]
pub struct Store {
    endpoint: Endpoint,
    prefix: String,
    timeout: Duration,
    connection: Arc<Mutex<Connection>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("address", &self.address())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

struct Connection {
    stream: TcpStream,
    /// An answer was not read to its end: what comes next would be taken for another's.
    broken: bool,
}

/// Where a store or a rank listens, and as whom this process goes there.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) credentials: Credentials,
    pub(crate) rank: usize,
}

/// Why a connection was not made.
pub(crate) enum ConnectError {
    /// Nobody listens there yet, or no longer.
    Unreachable(io::Error),
    /// Whoever listens there did not answer the hello.
    Unanswered(io::Error),
    /// The other end did not accept the hello.
    Refused(Verdict),
}

impl Endpoint {
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Makes one attempt to connect.
    pub(crate) fn dial(
        &self,
        role: Role,
        group: u64,
        deadline: Instant,
    ) -> Result<TcpStream, ConnectError> {
        let mut stream = self.open(deadline).map_err(ConnectError::Unreachable)?;
        let hello = Hello { role, credentials: self.credentials, rank: self.rank as u32, group };
        match hello.say(&mut stream, deadline).map_err(ConnectError::Unanswered)? {
            Verdict::Welcome => Ok(stream),
            verdict => Err(ConnectError::Refused(verdict)),
        }
    }

    /// As [`Self::dial`], again and again while the hello is not answered: strangers may occupy the
    /// listener for as long as a hello may take.
    pub(crate) fn dial_patiently(
        &self,
        role: Role,
        group: u64,
        deadline: Instant,
        is_over: impl Fn() -> bool,
    ) -> Result<TcpStream, ConnectError> {
        loop {
            match self.dial(role, group, deadline) {
                Err(ConnectError::Unanswered(_)) if Instant::now() < deadline && !is_over() => {
                    std::thread::sleep(RETRY);
                }
                other => return other,
            }
        }
    }

    fn open(&self, deadline: Instant) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let addresses: Vec<SocketAddr> =
            (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = left.clamp(Duration::from_millis(1), Duration::from_secs(5));
            match TcpStream::connect_timeout(&address, wait) {
                // Without a listener, a port of the ephemeral range can connect to itself.
                Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                    last = io::ErrorKind::ConnectionRefused.into();
                }
                Ok(stream) => {
                    // A wish: a sandbox may refuse it, and small messages only take longer.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Tells why the last attempt failed.
    pub(crate) fn failed(&self, error: &ConnectError) -> CommError {
        let address = self.address();
        match error {
            ConnectError::Refused(verdict) => {
                let reason = verdict.reason().to_owned();
                CommError::Refused { address, rank: self.rank, reason }
            }
            ConnectError::Unreachable(error) => {
                CommError::Store { address, detail: format!("cannot connect: {error}") }
            }
            ConnectError::Unanswered(error) => {
                let does = match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "does not answer",
                    _ => "closes the connection",
                };
                let detail = format!("whoever listens there {does}; has another program the port?");
                CommError::Store { address, detail }
            }
        }
    }
}

impl Store {
    /// Connects to the store at `host:port`, and waits until it is there.
    ///
    /// # Errors
    /// [`CommError::Refused`] for a wrong token or run, [`CommError::Store`] when nobody listens
    /// there within `timeout`.
    pub fn connect(
        host: &str,
        port: u16,
        options: &StoreOptions,
        timeout: Duration,
    ) -> Result<Self> {
        let restart = options.restart_count.unwrap_or(0);
        let credentials = Credentials::new(options.token.as_deref(), &options.run_id, restart);
        let endpoint = Endpoint { host: host.to_owned(), port, credentials, rank: 0 };
        let deadline = deadline_after(timeout);
        loop {
            match Self::dial(&endpoint, timeout, deadline) {
                Ok(store) => return Ok(store),
                Err(error @ ConnectError::Refused(_)) => return Err(endpoint.failed(&error)),
                Err(error) if Instant::now() >= deadline => return Err(endpoint.failed(&error)),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    /// Makes one attempt to connect.
    pub(crate) fn dial(
        endpoint: &Endpoint,
        timeout: Duration,
        deadline: Instant,
    ) -> Result<Self, ConnectError> {
        let stream = endpoint.dial(Role::Store, 0, deadline)?;
        let connection = Arc::new(Mutex::new(Connection { stream, broken: false }));
        Ok(Self { endpoint: endpoint.clone(), prefix: String::new(), timeout, connection })
    }

    /// Returns the same store seen through a prefix of all keys.
    pub fn with_prefix(&self, prefix: &str) -> Self {
        let prefix = format!("{}{prefix}/", self.prefix);
        Self { prefix, ..self.clone() }
    }

    /// Returns the same store with another deadline for calls that do not wait by intent.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        // Zero means "no timeout" to the operating system.
        Self { timeout: timeout.max(Duration::from_millis(1)), ..self.clone() }
    }

    /// Returns the address of the server.
    pub fn address(&self) -> String {
        self.endpoint.address()
    }

    /// Returns the address from which this process reaches the server.
    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        lock(&self.connection).stream.local_addr()
    }

    /// Sets a key.
    ///
    /// # Errors
    /// [`CommError::Store`] when the server cannot be reached or refuses.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.check_value(value)?;
        let request = Request::Set { key: self.key(key)?, value: value.to_vec() };
        self.ask(&request, Duration::ZERO).map(|_| ())
    }

    /// Returns the value of a key, and waits up to `timeout` until it is set.
    ///
    /// # Errors
    /// [`CommError::StoreTimeout`] when it is not; the session's failure if there is one.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let wait_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let request = Request::Get { key: self.key(key)?, wait_ms };
        self.ask(&request, timeout)?.ok_or_else(|| CommError::StoreTimeout {
            address: self.address(),
            key: key.to_owned(),
            timeout,
        })
    }

    /// Returns the value of a key if it is set now.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let request = Request::Get { key: self.key(key)?, wait_ms: 0 };
        self.ask(&request, Duration::ZERO)
    }

    /// Adds to a counter, which begins at zero, and returns the sum.
    ///
    /// # Errors
    /// As [`Self::set`]; also when the key holds something else.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let request = Request::Add { key: self.key(key)?, delta };
        let sum = self.ask(&request, Duration::ZERO)?.unwrap_or_default();
        let sum = sum.try_into().map_err(|_| self.failed("it answered with no counter"))?;
        Ok(i64::from_le_bytes(sum))
    }

    /// Sets a key to `desired` if it holds `expected` (empty = not set), and returns what it
    /// holds afterwards.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.check_value(desired)?;
        let (expected, desired) = (expected.to_vec(), desired.to_vec());
        let request = Request::CompareSet { key: self.key(key)?, expected, desired };
        Ok(self.ask(&request, Duration::ZERO)?.unwrap_or_default())
    }

    /// Removes a key and tells whether it was set.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn delete(&self, key: &str) -> Result<bool> {
        let request = Request::Delete { key: self.key(key)? };
        Ok(self.ask(&request, Duration::ZERO)?.is_some())
    }

    /// Sets a key that the server removes when this connection ends, however that happens: at the
    /// latest 4 s after this process' machine has lost its power or its network.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn lease(&self, key: &str, value: &[u8]) -> Result<()> {
        self.check_value(value)?;
        let request = Request::Lease { key: self.key(key)?, value: value.to_vec() };
        self.ask(&request, Duration::ZERO).map(|_| ())
    }

    /// Returns the number of keys in the store, under all prefixes.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn num_keys(&self) -> Result<usize> {
        let count = self.ask(&Request::NumKeys, Duration::ZERO)?.unwrap_or_default();
        let count = count.try_into().map_err(|_| self.failed("it answered with no number"))?;
        Ok(u64::from_le_bytes(count) as usize)
    }

    fn key(&self, key: &str) -> Result<String> {
        let key = format!("{}{key}", self.prefix);
        if key.len() <= MAX_KEY_BYTES {
            return Ok(key);
        }
        Err(self.failed(format!("a key of {} bytes is too long", key.len())))
    }

    fn check_value(&self, value: &[u8]) -> Result<()> {
        if value.len() <= MAX_VALUE_BYTES {
            return Ok(());
        }
        let len = value.len();
        Err(self
            .failed(format!("a value of {len} bytes is too long, {MAX_VALUE_BYTES} are allowed")))
    }

    fn failed(&self, detail: impl Into<String>) -> CommError {
        CommError::Store { address: self.address(), detail: detail.into() }
    }

    /// Sends a request and reads its answer; `wait` is how long the server may take by intent.
    fn ask(&self, request: &Request, wait: Duration) -> Result<Option<Vec<u8>>> {
        let mut connection = lock(&self.connection);
        if connection.broken {
            return Err(self.failed("the connection broke earlier"));
        }
        let limit = if wait.is_zero() { self.timeout } else { wait.saturating_add(ANSWER_SLACK) };
        connection.broken = true;
        let answer = exchange(&mut connection.stream, request, limit)
            .map_err(|error| self.failed(format!("the connection broke: {error}")))?;
        connection.broken = false;
        match answer {
            Answer::Value(value) => Ok(Some(value)),
            Answer::Missing => Ok(None),
            Answer::Failed(failure) => Err(failure.into()),
            Answer::Refused(reason) => Err(self.failed(reason)),
        }
    }
}

fn exchange(stream: &mut TcpStream, request: &Request, limit: Duration) -> io::Result<Answer> {
    stream.set_read_timeout(Some(limit))?;
    let (kind, payload) = request.encode();
    write_frame(stream, kind, &[&payload])?;
    let (kind, payload) = read_frame(stream)?;
    Answer::decode(kind, payload).ok_or(io::ErrorKind::InvalidData.into())
}
