//! The recorder of a rank and the handle of an entry.

use std::ffi::OsString;
use std::fmt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::dump::write;
use super::ring::{Asked, Group, GroupKey, Ring, Slot};
use super::{Dump, Entry, GroupProgress, Reason, VERSION, label};
use crate::env::run_of_this_process;
use crate::sync::lock;
use crate::{CommError, DType, Operation};

/// Environment variable with the folder to which a rank dumps at its first failure.
pub const FOLDER_VARIABLE: &str = "BONFIRE_FLIGHT_DIR";

/// The last [`CAPACITY`](super::CAPACITY) operations of one rank over all groups of its session.
pub struct Recorder {
    rank: usize,
    world_size: usize,
    run_id: String,
    restart: u32,
    began: Instant,
    ring: Mutex<Ring>,
    on_failure: Mutex<OnFailure>,
    /// Held while a dump is written, so that two at once do not share a file.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct OnFailure {
    folder: Option<PathBuf>,
    done: bool,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world_size, .. } = self;
        f.debug_struct("Recorder")
            .field("rank", rank)
            .field("world_size", world_size)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Makes an empty recorder. It dumps at the first failure if [`FOLDER_VARIABLE`] is set.
    pub fn new(rank: usize, world_size: usize) -> Self {
        let folder = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
        Self::with_folder(rank, world_size, folder)
    }

    /// Makes a recorder of what is nobody's to read: it never dumps.
    pub(crate) fn apart(rank: usize, world_size: usize) -> Self {
        Self::with_folder(rank, world_size, None)
    }

    fn with_folder(rank: usize, world_size: usize, folder: Option<OsString>) -> Self {
        let (run_id, restart) = run_of_this_process();
        Self {
            rank,
            world_size,
            run_id,
            restart,
            began: Instant::now(),
            ring: Mutex::new(Ring::new()),
            on_failure: Mutex::new(OnFailure { folder: folder.map(Into::into), done: false }),
            writing: Mutex::default(),
        }
    }

    /// Makes a group known, of which this rank is the rank `rank` of `world_size`.
    pub fn register(&self, identity: &str, rank: usize, world_size: usize) -> GroupKey {
        lock(&self.ring).register(identity, rank, world_size)
    }

    /// Dumps to `folder` at the first failure from now on, instead of where the environment says.
    pub fn dump_on_failure(&self, folder: impl Into<PathBuf>) {
        lock(&self.on_failure).folder = Some(folder.into());
    }

    /// Returns the folder to which the recorder dumps at the first failure.
    pub fn folder(&self) -> Option<PathBuf> {
        lock(&self.on_failure).folder.clone()
    }

    /// Writes `flight-rank-<rank>.json` into `folder`, which is made if need be, and returns its
    /// path. An older dump of the rank is replaced, at once as a whole.
    ///
    /// # Errors
    /// When the file cannot be written; the text names it.
    pub fn dump(&self, folder: &Path) -> std::io::Result<PathBuf> {
        self.write(folder, Reason::Request)
    }

    /// Returns what a dump would say now.
    pub fn snapshot(&self, reason: Reason) -> Dump {
        let ring = lock(&self.ring);
        let clock = Clock::read(self.now());
        let progress = |group: &Group| GroupProgress {
            identity: group.identity.to_string(),
            rank: group.rank,
            world_size: group.world_size,
            entered: group.entered,
            finished: group.finished,
        };
        Dump {
            version: VERSION,
            run_id: self.run_id.clone(),
            restart: self.restart,
            rank: self.rank,
            world_size: self.world_size,
            host: host_name(),
            pid: std::process::id(),
            began: clock.wall(0),
            dumped: clock.dumped,
            reason,
            evicted: ring.evicted(),
            groups: ring.groups().iter().map(progress).collect(),
            entries: ring.entries().map(|slot| entry(&ring, slot, &clock)).collect(),
        }
    }

    /// Returns how many operations have been called until now: the [`id`](Entry::id) of the next.
    pub fn num_calls(&self) -> u64 {
        lock(&self.ring).num_calls()
    }

    /// Returns the operations from number `first` on as they are now, oldest first, as far as they are
    /// still known.
    pub fn entries_from(&self, first: u64) -> Vec<Entry> {
        let ring = lock(&self.ring);
        let clock = Clock::read(self.now());
        let new = ring.entries().filter(|slot| slot.id >= first);
        new.map(|slot| entry(&ring, slot, &clock)).collect()
    }

    fn write(&self, folder: &Path, reason: Reason) -> std::io::Result<PathBuf> {
        let _one_at_a_time = lock(&self.writing);
        write(&self.snapshot(reason), folder)
    }

    /// Dumps if this is the first failure and somebody wants to know. The failure is what
    /// matters: whatever goes wrong here is only logged.
    fn failed(&self, error: &CommError) {
        let folder = {
            let mut on_failure = lock(&self.on_failure);
            if on_failure.done || on_failure.folder.is_none() {
                return;
            }
            on_failure.done = true;
            on_failure.folder.clone()
        };
        if let Some(folder) = folder {
            log(self.rank, self.write(&folder, Reason::Failure(error.to_string())));
        }
    }

    /// Nanoseconds since the recorder began; enough for 584 years.
    fn now(&self) -> u64 {
        let elapsed = self.began.elapsed();
        elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
    }
}

/// Turns times of the recorder into Unix times.
struct Clock {
    elapsed: u64,
    dumped: u64,
}

impl Clock {
    fn read(elapsed: u64) -> Self {
        Self { elapsed, dumped: unix_time() }
    }

    /// Counted back from the present, so that a clock that was set since does not matter.
    fn wall(&self, at: u64) -> u64 {
        self.dumped.saturating_sub(self.elapsed.saturating_sub(at))
    }
}

fn entry(ring: &Ring, slot: &Slot, clock: &Clock) -> Entry {
    let asked = &slot.asked;
    Entry {
        id: slot.id,
        group: ring.group(asked.group).map_or_else(String::new, |g| g.identity.to_string()),
        sequence: slot.sequence,
        operation: asked.operation.to_string(),
        dtype: asked.dtype.to_string(),
        count: asked.count,
        bytes: asked.count * asked.dtype.size_bytes(),
        site: format!("{}:{}", asked.site.file(), asked.site.line()),
        label: asked.label.as_deref().map(str::to_owned),
        state: slot.state,
        created: clock.wall(asked.created),
        started: slot.started.map(|at| clock.wall(at)),
        finished: slot.finished.map(|at| clock.wall(at)),
        on_device: slot.on_device,
        error: slot.error.as_deref().map(str::to_owned),
    }
}

/// Dumps on request and logs where to, or why not: what the thread that listens for a signal
/// calls.
pub fn dump_on_signal(recorder: &Arc<Recorder>, folder: &Path) {
    log(recorder.rank, recorder.dump(folder));
}

fn log(rank: usize, dump: std::io::Result<PathBuf>) {
    match dump {
        Ok(path) => tracing::info!(rank, path = %path.display(), "wrote the flight recorder"),
        Err(error) => tracing::warn!(rank, %error, "no dump of the flight recorder"),
    }
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unknown".to_owned() } else { name.trim().to_owned() }
}

/// The entry of one operation; clones are the same entry.
#[derive(Debug, Clone)]
pub struct Record {
    recorder: Arc<Recorder>,
    id: u64,
}

impl Record {
    /// Enters an operation that a rank has just called in `group`, of the same recorder.
    pub fn begin(
        recorder: &Arc<Recorder>,
        group: GroupKey,
        operation: Operation,
        dtype: DType,
        count: usize,
        site: &'static Location<'static>,
    ) -> Self {
        let (label, created) = (label::current(), recorder.now());
        let asked = Asked { group, operation, dtype, count, site, label, created };
        let id = lock(&recorder.ring).begin(asked);
        Self { recorder: recorder.clone(), id }
    }

    /// Notes that the engine has begun the operation, which has this number in its group, or
    /// among the messages to or from its peer. The first call counts.
    pub fn started(&self, sequence: u64) {
        let now = self.recorder.now();
        lock(&self.recorder.ring).start(self.id, sequence, now);
    }

    /// Notes how long the operation took on its device.
    pub fn on_device(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        lock(&self.recorder.ring).on_device(self.id, nanoseconds);
    }

    /// Notes the end of the operation; the first call counts. The first failure of the rank
    /// dumps its recorder, see [`Recorder::dump_on_failure`].
    pub fn finished(&self, error: Option<&CommError>) {
        let now = self.recorder.now();
        let text = error.map(|error| error.to_string().into_boxed_str());
        lock(&self.recorder.ring).finish(self.id, text, now);
        if let Some(error) = error {
            self.recorder.failed(error);
        }
    }
}
