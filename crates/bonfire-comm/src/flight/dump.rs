//! The file that a rank leaves: its format, written and read.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Version of the format. A reader refuses others.
pub const VERSION: u32 = 1;

const PREFIX: &str = "flight-rank-";
const SUFFIX: &str = ".json";

/// The recorder of one rank at one time. Times are Unix times in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// Version of the format, [`VERSION`].
    pub version: u32,
    /// Name of the run, `BONFIRE_RUN_ID`; `none` without one.
    pub run_id: String,
    /// How often the launcher has restarted the run.
    pub restart: u32,
    /// Rank in the world.
    pub rank: usize,
    /// Number of ranks in the world.
    pub world_size: usize,
    /// Name of the machine.
    pub host: String,
    /// Process on it.
    pub pid: u32,
    /// When the rank made its first group.
    pub began: u64,
    /// When the dump was made.
    pub dumped: u64,
    /// Why it was made.
    pub reason: Reason,
    /// Number of older entries that are gone.
    pub evicted: u64,
    /// Every group that the rank has made, in that order.
    pub groups: Vec<GroupProgress>,
    /// The last operations, oldest first.
    pub entries: Vec<Entry>,
}

/// Why a dump was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Somebody asked for it.
    Request,
    /// An operation of the rank failed, with this error.
    Failure(String),
}

/// How far a rank has come in a group. Counts collectives, not messages between two ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupProgress {
    /// Name of the group, unique in the session and the same on all its ranks.
    pub identity: String,
    /// The rank in this group.
    pub rank: usize,
    /// Number of ranks in this group.
    pub world_size: usize,
    /// Collectives that the rank has entered: the next has this sequence number.
    pub entered: u64,
    /// Collectives that the rank has finished without an error.
    pub finished: u64,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Running number among all operations of the rank.
    pub id: u64,
    /// [`GroupProgress::identity`] of its group.
    pub group: String,
    /// Number among the collectives of the group, or among the messages to or from the same
    /// rank; none until it has started. A batch of messages has that of its first.
    pub sequence: Option<u64>,
    /// The operation with its arguments, such as `all_reduce(sum)`. A batch of messages has its
    /// first.
    pub operation: String,
    /// Type of the elements.
    pub dtype: String,
    /// Number of elements.
    pub count: usize,
    /// Size of the elements together.
    pub bytes: usize,
    /// File and line that called.
    pub site: String,
    /// What [`label`](super::label) said.
    pub label: Option<String>,
    /// How far it is.
    pub state: State,
    /// When it was called.
    pub created: u64,
    /// When its turn came and the engine began it.
    pub started: Option<u64>,
    /// When it ended.
    pub finished: Option<u64>,
    /// Nanoseconds that a device took for it, by the device's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_device: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
}

impl Entry {
    /// Whether it is a message between two ranks, not a collective.
    pub(super) fn is_message(&self) -> bool {
        is_message(&self.operation)
    }
}

/// Whether the operation of that text is a message between two ranks.
pub(super) fn is_message(operation: &str) -> bool {
    operation.starts_with("send(") || operation.starts_with("recv(")
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was called and waits for its turn.
    Created,
    /// The engine is in it.
    Started,
    /// It has ended well.
    Finished,
    /// It has ended with an error.
    Failed,
}

/// Returns the name of the dump of `rank`.
pub(super) fn file_name(rank: usize) -> String {
    format!("{PREFIX}{rank}{SUFFIX}")
}

/// Whether a file of this name is a dump.
pub(super) fn is_file_name(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_suffix(SUFFIX))
        .is_some_and(|rank| rank.parse::<usize>().is_ok())
}

/// Writes `dump` into `folder`, aside first: a reader never meets half of it.
pub(super) fn write(dump: &Dump, folder: &Path) -> std::io::Result<PathBuf> {
    let path = folder.join(file_name(dump.rank));
    let aside = folder.join(format!(".{}.{}", file_name(dump.rank), dump.pid));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| write_file(dump, &aside))
        .and_then(|()| std::fs::rename(&aside, &path));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&aside);
        let text = format!("cannot write {}: {error}", path.display());
        return Err(std::io::Error::new(error.kind(), text));
    }
    Ok(path)
}

fn write_file(dump: &Dump, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer_pretty(&mut file, dump)?;
    file.write_all(b"\n")?;
    file.flush()
}
