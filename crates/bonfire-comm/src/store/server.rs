//! The server of the store.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Acceptor;
use super::protocol::{Answer, Note, Request, Scope, encode_progress};
use crate::failure::{Failure, FailureKind};
use crate::presence::{how_it_ended, watch};
use crate::sync::lock;
use crate::wire::{Credentials, Hello, Role, read_frame, write_frame};
use crate::{CommError, Result};

/// Authenticated connections: two for each rank of a world of 2000.
const MAX_CONNECTIONS: usize = 4096;
/// Keys that the map holds at most.
const MAX_KEYS: usize = 1 << 20;
/// Time that a closing server gives its ranks to say goodbye.
const LINGER: Duration = Duration::from_secs(5);
/// The same when the session has failed and everybody was told.
const LINGER_FAILED: Duration = Duration::from_secs(1);

/// The same once it has told them that it closes.
const LINGER_CLOSING: Duration = Duration::from_millis(500);

/// Who may use a store.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// The shared secret; `None` lets everybody in who can reach the address.
    pub token: Option<String>,
    /// Run that clients must belong to.
    pub run_id: String,
    /// Restart that clients must belong to; `None` serves all restarts of the run, as a
    /// launcher does.
    pub restart_count: Option<u32>,
}

/// Hosts a store: in the launcher, or in rank 0. Dropping it waits up to 5 s for ranks that have
/// not said goodbye, then closes their connections.
pub struct StoreServer {
    acceptor: Option<Acceptor>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreServer").field("address", &self.address()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
    next_connection: AtomicU64,
}

#[derive(Default)]
struct State {
    map: BTreeMap<String, Vec<u8>>,
    sessions: BTreeMap<Scope, Session>,
    connections: BTreeMap<u64, TcpStream>,
}

/// The ranks of one session and its first failure.
#[derive(Default)]
struct Session {
    present: BTreeMap<usize, TcpStream>,
    left: Vec<usize>,
    failure: Option<Failure>,
}

impl Session {
    /// Tells every rank; one that cannot listen is dying, which its own connection reports.
    fn tell_all(&mut self, note: &Note) {
        let (kind, payload) = note.encode();
        for stream in self.present.values_mut() {
            let _ = write_frame(stream, kind, &[&payload]);
        }
    }

    fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            tracing::debug!(?failure, "session failed");
            self.tell_all(&Note::Failure(failure.clone()));
            self.failure = Some(failure);
        }
    }
}

impl StoreServer {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// [`CommError::System`] when the address cannot be listened on.
    pub fn bind(address: SocketAddr, options: &StoreOptions) -> Result<Self> {
        let failed = |error: io::Error| {
            CommError::system(format!("listen on {address} for the store"), &error)
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let restart = options.restart_count.unwrap_or(0);
        let credentials = Credentials::new(options.token.as_deref(), &options.run_id, restart);
        let shared = Arc::new(Shared::default());
        let server = shared.clone();
        let check_run = options.restart_count.is_some();
        let acceptor = Acceptor::start(listener, credentials, check_run, move |stream, hello| {
            server.serve(stream, &hello);
        })
        .map_err(failed)?;
        Ok(Self { acceptor: Some(acceptor), shared })
    }

    /// Returns the address that is listened on.
    pub fn address(&self) -> SocketAddr {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        self.acceptor.as_ref().map_or(unknown, Acceptor::address)
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        let start = Instant::now();
        loop {
            let busy = state.sessions.values().any(|session| !session.present.is_empty());
            let failed = state.sessions.values().any(|session| session.failure.is_some());
            let linger = if failed { LINGER_FAILED } else { LINGER };
            let left = linger.saturating_sub(start.elapsed());
            if !busy || left.is_zero() {
                break;
            }
            let wait = self.shared.changed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.shared.stopping.store(true, Ordering::Release);
        state.sessions.values_mut().for_each(|session| session.tell_all(&Note::Closing));
        // What a rank says meanwhile has to be read: closing over it would be a reset, which takes from the
        // rank what it has been told and has not read yet.
        for stream in state.sessions.values().flat_map(|session| session.present.values()) {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let start = Instant::now();
        while state.sessions.values().any(|session| !session.present.is_empty()) {
            let left = LINGER_CLOSING.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            let wait = self.shared.changed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        for stream in state.connections.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        self.acceptor = None;
    }
}

impl Shared {
    /// Serves one connection until it ends.
    fn serve(&self, stream: TcpStream, hello: &Hello) {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let _ = stream.set_nodelay(true);
        {
            let mut state = lock(&self.state);
            let stopping = self.stopping.load(Ordering::Acquire);
            let Ok(copy) = stream.try_clone() else { return };
            if stopping || state.connections.len() >= MAX_CONNECTIONS {
                return;
            }
            state.connections.insert(id, copy);
        }
        let result = match hello.role {
            Role::Store => self.serve_requests(stream),
            Role::Presence => self.serve_presence(stream, hello.rank as usize),
            Role::Mesh => Ok(()),
        };
        if let Err(error) = result
            && error.kind() != io::ErrorKind::UnexpectedEof
        {
            tracing::debug!(%error, rank = hello.rank, "a store connection broke");
        }
        lock(&self.state).connections.remove(&id);
        self.changed.notify_all();
    }

    fn serve_requests(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut leased = Vec::new();
        let result = self.answer_requests(&mut stream, &mut leased);
        let mut state = lock(&self.state);
        leased.iter().for_each(|key| drop(state.map.remove(key)));
        result
    }

    /// Answers until the connection ends, and notes the keys that go with it.
    fn answer_requests(&self, stream: &mut TcpStream, leased: &mut Vec<String>) -> io::Result<()> {
        loop {
            let (kind, payload) = read_frame(stream)?;
            let request = Request::decode(kind, &payload).ok_or(io::ErrorKind::InvalidData)?;
            if let Request::Lease { key, .. } = &request {
                watch(stream);
                leased.push(key.clone());
            }
            let (kind, payload) = self.answer(request).encode();
            write_frame(stream, kind, &[&payload])?;
        }
    }

    fn answer(&self, request: Request) -> Answer {
        if let Request::Get { key, wait_ms } = &request {
            return self.get(key, Duration::from_millis(*wait_ms));
        }
        let mut state = lock(&self.state);
        let answer = state.change(request);
        drop(state);
        self.changed.notify_all();
        answer
    }

    /// Waits for a key; a failure of its session ends the wait.
    fn get(&self, key: &str, wait: Duration) -> Answer {
        let deadline = crate::group::deadline_after(wait);
        let mut state = lock(&self.state);
        loop {
            if let Some(value) = state.map.get(key) {
                return Answer::Value(value.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stopping.load(Ordering::Acquire) {
                return Answer::Missing;
            }
            if let Some(failure) = state.failure_for(key) {
                return Answer::Failed(failure);
            }
            let result = self.changed.wait_timeout(state, left);
            state = result.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn serve_presence(&self, mut stream: TcpStream, rank: usize) -> io::Result<()> {
        // A rank that does not listen must not stop the server from telling the others.
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        watch(&stream);
        let Note::Join(scope) = read_note(&mut stream)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut state = lock(&self.state);
        state.sessions.entry(scope.clone()).or_default().join(rank, &stream)?;
        state.map.insert(scope.present_key(rank), Vec::new());
        drop(state);
        let result = self.hear_notes(&mut stream, &scope, rank);
        let mut state = lock(&self.state);
        let session = state.sessions.entry(scope).or_default();
        session.present.remove(&rank);
        match &result {
            Ok(()) => {
                session.left.push(rank);
                session.tell_all(&Note::Left(rank));
            }
            Err(error) if !self.stopping.load(Ordering::Acquire) => {
                let detail = format!("connection to the store {}", how_it_ended(error));
                session.fail(Failure::new(rank, FailureKind::Died, detail));
            }
            Err(_) => {}
        }
        drop(state);
        self.changed.notify_all();
        result
    }

    /// Hears what a rank has to say until its goodbye.
    fn hear_notes(&self, stream: &mut TcpStream, scope: &Scope, rank: usize) -> io::Result<()> {
        loop {
            let note = read_note(stream)?;
            let mut state = lock(&self.state);
            match note {
                Note::Goodbye => return Ok(()),
                Note::Failure(failure) => {
                    state.sessions.entry(scope.clone()).or_default().fail(failure);
                }
                Note::Query(_) => {
                    state.sessions.entry(scope.clone()).or_default().tell_all(&note);
                }
                Note::Progress(group, last) => {
                    let key = scope.key(&format!("progress/{group}/{rank}"));
                    state.map.insert(key, encode_progress(last.as_ref()));
                }
                Note::Join(_) | Note::Left(_) | Note::Closing => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

impl Session {
    fn join(&mut self, rank: usize, stream: &TcpStream) -> io::Result<()> {
        if self.present.contains_key(&rank) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut stream = stream.try_clone()?;
        let known = self.left.iter().map(|&rank| Note::Left(rank));
        for note in known.chain(self.failure.clone().map(Note::Failure)) {
            let (kind, payload) = note.encode();
            write_frame(&mut stream, kind, &[&payload])?;
        }
        self.present.insert(rank, stream);
        Ok(())
    }
}

impl State {
    fn change(&mut self, request: Request) -> Answer {
        if self.map.len() >= MAX_KEYS {
            return Answer::Refused(format!("the store is full ({MAX_KEYS} keys)"));
        }
        match request {
            Request::Set { key, value } | Request::Lease { key, value } => {
                self.map.insert(key, value);
                Answer::Value(Vec::new())
            }
            Request::Add { key, delta } => self.add(key, delta),
            Request::CompareSet { key, expected, desired } => {
                let current = self.map.get(&key).map(Vec::as_slice).unwrap_or_default();
                if current == expected {
                    self.map.insert(key, desired.clone());
                    return Answer::Value(desired);
                }
                Answer::Value(current.to_vec())
            }
            Request::Delete { key } => match self.map.remove(&key) {
                Some(_) => Answer::Value(Vec::new()),
                None => Answer::Missing,
            },
            Request::NumKeys => Answer::Value((self.map.len() as u64).to_le_bytes().to_vec()),
            Request::Get { key, .. } => match self.map.get(&key) {
                Some(value) => Answer::Value(value.clone()),
                None => Answer::Missing,
            },
        }
    }

    fn add(&mut self, key: String, delta: i64) -> Answer {
        let current = match self.map.get(&key).map(|value| <[u8; 8]>::try_from(value.as_slice())) {
            None => 0,
            Some(Ok(bytes)) => i64::from_le_bytes(bytes),
            Some(Err(_)) => return Answer::Refused(format!("key {key:?} holds no counter")),
        };
        let sum = current.wrapping_add(delta).to_le_bytes().to_vec();
        self.map.insert(key, sum.clone());
        Answer::Value(sum)
    }

    fn failure_for(&self, key: &str) -> Option<Failure> {
        let of_key = |(scope, _): &(&Scope, &Session)| {
            key.strip_prefix(&scope.0).is_some_and(|rest| rest.starts_with('/'))
        };
        self.sessions.iter().find(of_key).and_then(|(_, session)| session.failure.clone())
    }
}

fn read_note(stream: &mut TcpStream) -> io::Result<Note> {
    let (kind, payload) = read_frame(stream)?;
    Note::decode(kind, &payload).ok_or(io::ErrorKind::InvalidData.into())
}
