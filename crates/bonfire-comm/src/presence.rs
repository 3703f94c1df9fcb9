//! Membership of a rank that is a process: its presence connection to the store.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use socket2::{SockRef, TcpKeepalive};

use crate::failure::{Failure, FailureKind};
use crate::membership::{Entered, Latch, Membership, Progress};
use crate::store::{Note, Scope, Store, StoreServer, decode_progress};
use crate::sync::lock;
use crate::wire::{read_frame, write_frame};
use crate::{CommError, Result};

/// Time for the server to take notice of a goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// Time for the other ranks to tell how far they are.
const PROGRESS: Duration = Duration::from_millis(700);

/// What this process knows of its session. Dropping it is the goodbye.
pub(crate) struct Presence {
    rank: usize,
    scope: Scope,
    store: Store,
    notebook: Arc<Notebook>,
    listener: Option<JoinHandle<()>>,
    ended: Receiver<()>,
    /// The store, when this process hosts it; it outlives the goodbye.
    server: Mutex<Option<StoreServer>>,
}

/// What the listening thread writes down.
struct Notebook {
    /// Where notes to the store are written, one at a time.
    writer: Mutex<TcpStream>,
    rank: usize,
    address: String,
    /// The rank that hosts the store; none when the launcher does.
    host: Option<usize>,
    latch: Latch,
    left: Vec<AtomicBool>,
    closing: AtomicBool,
    progress: Mutex<BTreeMap<String, Entered>>,
}

/// Makes the kernel end a connection whose other machine does not answer for 4 s: one that has lost
/// its power or its network says no goodbye. A process that is only stopped still answers.
///
/// Each option is a wish, as in [`tune`](crate::links::tune).
pub(crate) fn watch(stream: &TcpStream) {
    const PROBE: Duration = Duration::from_secs(1);
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(PROBE).with_interval(PROBE).with_retries(3);
    let _ = socket.set_tcp_keepalive(&probes);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(4 * PROBE));
}

/// Says how a connection came to its end.
pub(crate) fn how_it_ended(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => "ended, because its machine does not answer",
        _ => "closed without goodbye",
    }
}

/// Who takes part in a session.
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) scope: Scope,
    /// The rank that hosts the store; none when the launcher does.
    pub(crate) host: Option<usize>,
}

impl Presence {
    /// Joins the session over a connection that said its hello.
    pub(crate) fn join(
        seat: Seat,
        store: Store,
        mut stream: TcpStream,
        server: Option<StoreServer>,
    ) -> Result<Self> {
        let failed = |error: io::Error| CommError::system("join the session at the store", &error);
        let (kind, payload) = Note::Join(seat.scope.clone()).encode();
        write_frame(&mut stream, kind, &[&payload]).map_err(failed)?;
        // A store that does not listen must not stop this rank.
        stream.set_write_timeout(Some(GOODBYE)).map_err(failed)?;
        watch(&stream);
        let mut reader = stream.try_clone().map_err(failed)?;
        let notebook = Arc::new(Notebook {
            writer: Mutex::new(stream),
            rank: seat.rank,
            address: store.address(),
            host: seat.host,
            latch: Latch::default(),
            left: (0..seat.world_size).map(|_| AtomicBool::new(false)).collect(),
            closing: AtomicBool::new(false),
            progress: Mutex::default(),
        });
        let (end, ended) = bounded(1);
        let book = notebook.clone();
        let listener = std::thread::Builder::new()
            .name("comm presence".into())
            .spawn(move || {
                book.listen(&mut reader);
                let _ = end.send(());
            })
            .map_err(failed)?;
        Ok(Self {
            rank: seat.rank,
            scope: seat.scope,
            store,
            notebook,
            listener: Some(listener),
            ended,
            server: Mutex::new(server),
        })
    }

    fn ask_progress(&self, group: &str, members: &[usize]) -> Result<Vec<Progress>, CommError> {
        // The store's host may be the rank that is stopped.
        let store = self.store.with_timeout(PROGRESS);
        let read = |rank: &usize| {
            let value = store.try_get(&self.scope.key(&format!("progress/{group}/{rank}")))?;
            let last = value.and_then(|bytes| decode_progress(&bytes));
            Ok(last.map_or(Progress::Silent, Progress::Entered))
        };
        self.notebook.tell(&Note::Query(group.to_owned()));
        let limit = Instant::now() + PROGRESS;
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let answers: Vec<_> = members.iter().map(read).collect::<Result<_>>()?;
            if !answers.contains(&Progress::Silent) || Instant::now() >= limit {
                return Ok(answers);
            }
        }
    }
}

impl Notebook {
    fn tell(&self, note: &Note) {
        let (kind, payload) = note.encode();
        // A store that cannot be told is noticed by the listening thread.
        let _ = write_frame(&mut *lock(&self.writer), kind, &[&payload]);
    }

    /// Hears the store until the connection ends.
    fn listen(&self, stream: &mut TcpStream) {
        let end = loop {
            let (kind, payload) = match read_frame(stream) {
                Ok(frame) => frame,
                Err(error) => break Some(error),
            };
            match Note::decode(kind, &payload) {
                Some(Note::Failure(failure)) => {
                    if self.latch.set(failure) {
                        tracing::debug!(rank = self.rank, "heard of the session's failure");
                    }
                }
                Some(Note::Left(rank)) => self.set_left(rank),
                Some(Note::Closing) => {
                    self.closing.store(true, Ordering::Release);
                    self.host.into_iter().for_each(|host| self.set_left(host));
                }
                Some(Note::Query(group)) => {
                    let entered = lock(&self.progress).get(&group).cloned();
                    if let Some(entered) = entered {
                        let last = *lock(&entered);
                        self.tell(&Note::Progress(group, last));
                    }
                }
                _ => break None,
            }
        };
        if !self.closing.load(Ordering::Acquire) {
            let how = end.as_ref().map_or("closed without goodbye", how_it_ended);
            self.latch.set(self.loss_of_store(how));
        }
    }

    fn loss_of_store(&self, how: &str) -> Failure {
        match self.host {
            Some(host) => {
                let detail = format!("connection to the store, which it hosts, {how}");
                Failure::new(host, FailureKind::Died, detail)
            }
            None => Failure::new(self.rank, FailureKind::StoreLost, self.address.clone()),
        }
    }

    fn set_left(&self, rank: usize) {
        if let Some(left) = self.left.get(rank) {
            left.store(true, Ordering::Release);
        }
    }
}

impl Membership for Presence {
    fn rank(&self) -> usize {
        self.rank
    }

    fn failure(&self) -> Option<CommError> {
        self.notebook.latch.get().map(CommError::from)
    }

    fn fail(&self, failure: Failure) {
        if self.notebook.latch.set(failure.clone()) {
            self.notebook.tell(&Note::Failure(failure));
        }
    }

    fn has_left(&self, rank: usize) -> bool {
        self.notebook.left.get(rank).is_none_or(|left| left.load(Ordering::Acquire))
    }

    fn register(&self, group: &str, entered: Entered) {
        lock(&self.notebook.progress).insert(group.to_owned(), entered);
    }

    fn progress(&self, group: &str, members: &[usize]) -> Result<Vec<Progress>, String> {
        self.ask_progress(group, members).map_err(|_| match self.notebook.host {
            Some(host) => format!("rank {host}, which hosts the store, does not answer"),
            None => format!("the store at {} does not answer", self.notebook.address),
        })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(Failure::new(self.rank, FailureKind::Died, "it panicked"));
        }
        self.notebook.closing.store(true, Ordering::Release);
        self.notebook.tell(&Note::Goodbye);
        let stream = lock(&self.notebook.writer);
        // Only this direction: an unread note must not turn the goodbye into a reset.
        let _ = stream.shutdown(Shutdown::Write);
        let _ = self.ended.recv_timeout(GOODBYE);
        let _ = stream.shutdown(Shutdown::Both);
        drop(stream);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        drop(lock(&self.server).take());
    }
}
