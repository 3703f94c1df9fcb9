//! What the dumps of a run say, as data. `report/display.rs` says it in words.

mod display;

use serde::Serialize;

use super::{Entry, Reason, State};

/// What [`analyze`](super::analyze) has found. Ranks are those of the world, times Unix times in
/// nanoseconds. Its text has the findings first, in sentences, then the tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Name of the run.
    pub run_id: String,
    /// How often the launcher had restarted it.
    pub restart: u32,
    /// Number of ranks.
    pub world_size: usize,
    /// The dumps, by rank.
    pub dumps: Vec<DumpSummary>,
    /// Ranks without a dump.
    pub missing: Vec<usize>,
    /// What stands out, the likely causes first.
    pub findings: Vec<Finding>,
    /// How far each rank is in each group.
    pub groups: Vec<GroupSummary>,
}

/// Where a dump comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DumpSummary {
    /// Rank that left it.
    pub rank: usize,
    /// Machine.
    pub host: String,
    /// Process on it.
    pub pid: u32,
    /// When it was made.
    pub dumped: u64,
    /// Why it was made.
    pub reason: Reason,
    /// Entries that were gone by then.
    pub evicted: u64,
}

/// Something that stands out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// Ranks called different collectives at the same place.
    Mismatch(Mismatch),
    /// A collective that some ranks are in and others have not entered or not finished.
    Standstill(Standstill),
    /// A message that is under way.
    OpenMessage(OpenMessage),
    /// A call that failed.
    Failure(Failure),
    /// A rank that always comes late.
    Straggler(Straggler),
}

/// A call of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedCall {
    /// Identity of the group.
    pub group: String,
    /// The operation with its arguments.
    pub operation: String,
    /// Type of the elements.
    pub dtype: String,
    /// Number of elements.
    pub count: usize,
    /// Number in the group, or among the messages to or from the same rank, if it has started.
    pub sequence: Option<u64>,
    /// File and line that called.
    pub site: String,
    /// What [`label`](super::label) said.
    pub label: Option<String>,
}

impl From<&Entry> for RecordedCall {
    fn from(entry: &Entry) -> Self {
        Self {
            group: entry.group.clone(),
            operation: entry.operation.clone(),
            dtype: entry.dtype.clone(),
            count: entry.count,
            sequence: entry.sequence,
            site: entry.site.clone(),
            label: entry.label.clone(),
        }
    }
}

/// A call and when its state began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimedCall {
    /// The call.
    pub call: RecordedCall,
    /// How far it is.
    pub state: State,
    /// Nanoseconds before the dump at which it came to that.
    pub ago: u64,
}

impl TimedCall {
    /// Looks at `entry` from the time of the dump.
    pub(super) fn new(entry: &Entry, dumped: u64) -> Self {
        let began = entry.finished.or(entry.started).unwrap_or(entry.created);
        let ago = dumped.saturating_sub(began);
        Self { call: entry.into(), state: entry.state, ago }
    }
}

/// The first place in a group where its ranks called different collectives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Identity of the group.
    pub group: String,
    /// Number of the collective.
    pub sequence: u64,
    /// Who called what; at least two.
    pub sides: Vec<Side>,
}

/// The ranks that made the same call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Those ranks.
    pub ranks: Vec<usize>,
    /// Their call; place and label are those of the first.
    pub call: RecordedCall,
}

/// A collective that some ranks of a group have entered and not finished, or not all have
/// entered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Standstill {
    /// Identity of the group.
    pub group: String,
    /// Number of the collective.
    pub sequence: u64,
    /// The call of the first rank that came; none when its entry is gone.
    pub call: Option<RecordedCall>,
    /// When the first rank entered it.
    pub since: Option<u64>,
    /// Nanoseconds from then to the last dump of a rank that waits or is behind.
    pub lasted: Option<u64>,
    /// Ranks that wait in it, or waited until it failed.
    pub waiting: Vec<WaitingRank>,
    /// Ranks that have finished it.
    pub finished: Vec<usize>,
    /// Ranks that have not entered it.
    pub behind: Vec<BehindRank>,
    /// Ranks that had not entered it, but whose dumps are too old to tell whether they hold the
    /// others up.
    pub outdated: Vec<usize>,
    /// Says which ranks of the group are unknown, and why.
    pub absence: Option<String>,
}

/// A rank in a collective that has not ended well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingRank {
    /// The rank.
    pub rank: usize,
    /// File and line that called.
    pub site: String,
    /// When it entered.
    pub since: u64,
    /// Nanoseconds that it was in it when it dumped or when the collective failed.
    pub waited: u64,
    /// Whether the collective has failed on it.
    pub failed: bool,
}

/// A rank that others wait for, and where it is instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BehindRank {
    /// The rank.
    pub rank: usize,
    /// Collectives of the group that it has entered.
    pub entered: u64,
    /// Those that it has finished.
    pub finished: u64,
    /// The call that the others wait for, if it has made it without entering.
    pub called: Option<LateCall>,
    /// The oldest call of any group that it is in, and since when.
    pub open: Option<TimedCall>,
    /// The last call of any group that it has finished, and when.
    pub last: Option<TimedCall>,
}

/// A call that a rank made and did not enter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LateCall {
    /// The call.
    pub call: RecordedCall,
    /// Nanoseconds by which it came after the first rank had entered, if it came later.
    pub late: Option<u64>,
    /// Whether it has failed; else it waits for its turn.
    pub failed: bool,
}

/// A message between two ranks that was under way when a rank dumped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpenMessage {
    /// The rank that waits.
    pub rank: usize,
    /// Its call; the peer in it is a rank of the group.
    pub call: RecordedCall,
    /// When it was called.
    pub since: u64,
    /// Nanoseconds since, when the rank dumped.
    pub waited: u64,
}

/// The first failure of some ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Ranks with this error.
    pub ranks: Vec<usize>,
    /// The call of the rank that failed first.
    pub call: RecordedCall,
    /// When that failed.
    pub at: u64,
    /// The error.
    pub error: String,
}

/// A rank that calls the collectives of a group later than all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Straggler {
    /// Identity of the group.
    pub group: String,
    /// The rank.
    pub rank: usize,
    /// Median of the nanoseconds by which it called after the first rank.
    pub late: u64,
    /// The same of the next latest rank.
    pub next_late: u64,
    /// Collectives that were compared.
    pub num_collectives: usize,
    /// Whether the ranks are on several machines, whose clocks may differ.
    pub several_hosts: bool,
}

/// How far the ranks are in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupSummary {
    /// Identity of the group.
    pub group: String,
    /// Number of its ranks.
    pub size: usize,
    /// The ranks that left a dump.
    pub rows: Vec<Row>,
    /// Says which ranks are missing here, and why.
    pub absence: Option<String>,
}

/// How far one rank is in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The rank.
    pub rank: usize,
    /// The same in the group.
    pub rank_in_group: usize,
    /// Collectives that it has entered.
    pub entered: u64,
    /// Those that it has finished.
    pub finished: u64,
    /// The last that it has entered, if its entry is there still.
    pub last: Option<TimedCall>,
}
