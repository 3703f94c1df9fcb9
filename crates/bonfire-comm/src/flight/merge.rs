//! The dumps of all ranks, read and put together by group.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::dump::{file_name, is_file_name};
use super::words::{form, ranks, wall_clock};
use super::{Dump, Entry, GroupProgress, State, VERSION};

/// How far the clocks of two machines may be apart.
const CLOCK_TOLERANCE: u64 = 60_000_000_000;

/// Why dumps could not be analyzed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnalyzeError {
    /// Happens when the folder cannot be listed.
    #[error("cannot read the folder {}: {detail}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the operating system said.
        detail: String,
    },
    /// Happens when no file in the folder has the name of a dump.
    #[error(
        "no dump flight-rank-<rank>.json in {}; set {} when you start the run, to have one of \
         each rank at its first failure",
        folder.display(), super::FOLDER_VARIABLE
    )]
    NoDumps {
        /// The folder.
        folder: PathBuf,
    },
    /// Happens when a file with the name of a dump is none.
    #[error("{} is no dump of the flight recorder: {detail}; remove it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// Happens when another version of this crate wrote the dump.
    #[error(
        "{} has format version {got}, this program reads version {VERSION}; analyze it with the \
         program that wrote it",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        got: u32,
    },
    /// Happens when two dumps cannot come from the same run.
    #[error(
        "{} and {} are of different runs: {detail}; remove those of the run that you do not \
         look for",
        first.display(), second.display()
    )]
    DifferentRuns {
        /// A file.
        first: PathBuf,
        /// Another file.
        second: PathBuf,
        /// In what they differ.
        detail: String,
    },
}

/// All dumps of a run, by rank; at least one.
#[derive(Debug)]
pub(super) struct World {
    pub(super) dumps: Vec<Dump>,
}

/// What the dumps say of one group.
#[derive(Debug)]
pub(super) struct GroupView<'a> {
    pub(super) identity: &'a str,
    pub(super) size: usize,
    /// The ranks that have left a dump, in the order of the world.
    pub(super) members: Vec<Member<'a>>,
    /// Says which ranks of the group are not among the members, and why.
    pub(super) absence: Option<String>,
}

/// What the dump of one rank says of one group.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) dump: &'a Dump,
    pub(super) progress: &'a GroupProgress,
    /// The collectives that have started, by sequence number.
    pub(super) collectives: BTreeMap<u64, &'a Entry>,
    /// The calls behind those that have not started, in their order.
    pub(super) waiting: Vec<&'a Entry>,
    pub(super) messages: Vec<&'a Entry>,
}

impl World {
    /// Reads all dumps in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, AnalyzeError> {
        let cannot_list = |error: std::io::Error| AnalyzeError::Folder {
            folder: folder.to_owned(),
            detail: error.to_string(),
        };
        let mut dumps = BTreeMap::new();
        for file in std::fs::read_dir(folder).map_err(cannot_list)? {
            let name = file.map_err(cannot_list)?.file_name();
            let Some(name) = name.to_str().filter(|name| is_file_name(name)) else { continue };
            let dump = read_as(&folder.join(name), name)?;
            dumps.insert(dump.rank, dump);
        }
        let dumps: Vec<Dump> = dumps.into_values().collect();
        let Some(first) = dumps.first() else {
            return Err(AnalyzeError::NoDumps { folder: folder.to_owned() });
        };
        for dump in &dumps {
            let conflict = difference(first, dump).map(|detail| (first, detail));
            if let Some((other, detail)) = conflict.or_else(|| stale(&dumps, dump)) {
                let path = |dump: &Dump| folder.join(file_name(dump.rank));
                let (first, second) = (path(other), path(dump));
                return Err(AnalyzeError::DifferentRuns { first, second, detail });
            }
        }
        Ok(Self { dumps })
    }

    pub(super) fn size(&self) -> usize {
        self.dumps.first().map_or(0, |dump| dump.world_size)
    }

    /// Returns the ranks that have left no dump.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.size()).filter(|&rank| self.dumps.iter().all(|dump| dump.rank != rank)).collect()
    }

    /// Returns the groups in the order in which they were made.
    pub(super) fn groups(&self) -> Vec<GroupView<'_>> {
        let mut groups: Vec<GroupView<'_>> = Vec::new();
        for dump in &self.dumps {
            let mut entries: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
            for entry in &dump.entries {
                entries.entry(&entry.group).or_default().push(entry);
            }
            for progress in &dump.groups {
                let identity = progress.identity.as_str();
                let entries = entries.remove(identity).unwrap_or_default();
                let member = Member::new(dump, progress, &entries);
                match groups.iter_mut().find(|group| group.identity == identity) {
                    Some(group) => group.members.push(member),
                    None => {
                        let (size, members) = (progress.world_size, vec![member]);
                        groups.push(GroupView { identity, size, members, absence: None });
                    }
                }
            }
        }
        for group in &mut groups {
            group.absence = self.absence(group);
        }
        groups
    }

    fn absence(&self, group: &GroupView<'_>) -> Option<String> {
        let num_absent = group.size.saturating_sub(group.members.len());
        if num_absent == 0 {
            return None;
        }
        if group.size < self.size() {
            let size = group.size;
            return Some(format!(
                "{num_absent} of its {size} ranks left no dump or did not make it"
            ));
        }
        let missing = self.missing();
        let is_idle = |rank: &usize| {
            !missing.contains(rank) && group.members.iter().all(|member| member.rank() != *rank)
        };
        let idle: Vec<usize> = (0..self.size()).filter(is_idle).collect();
        let left_none = format!("{} left no dump", ranks(&missing));
        let made_none =
            format!("{} {} not made this group", ranks(&idle), form(&idle, "has", "have"));
        match (missing.is_empty(), idle.is_empty()) {
            (false, true) => Some(left_none),
            (true, _) => Some(made_none),
            (false, false) => Some(format!("{left_none}, {made_none}")),
        }
    }
}

impl<'a> Member<'a> {
    fn new(dump: &'a Dump, progress: &'a GroupProgress, entries: &[&'a Entry]) -> Self {
        let (messages, collectives): (Vec<_>, Vec<_>) =
            entries.iter().copied().partition(|entry| entry.is_message());
        let last = collectives.iter().rposition(|entry| entry.sequence.is_some());
        // What lies before the last that started was refused for its arguments.
        let behind_last = collectives.iter().copied().skip(last.map_or(0, |last| last + 1));
        let waiting = behind_last.filter(|entry| entry.state != State::Finished).collect();
        let collectives = collectives
            .into_iter()
            .filter_map(|entry| entry.sequence.map(|sequence| (sequence, entry)))
            .collect();
        Self { dump, progress, collectives, waiting, messages }
    }

    /// Returns the rank in the world.
    pub(super) fn rank(&self) -> usize {
        self.dump.rank
    }
}

fn read_as(path: &Path, name: &str) -> Result<Dump, AnalyzeError> {
    let dump = Dump::read(path)?;
    let unreadable = |detail| AnalyzeError::Unreadable { path: path.to_owned(), detail };
    if file_name(dump.rank) != name {
        return Err(unreadable(format!("it is the dump of rank {}, renamed", dump.rank)));
    }
    if dump.rank >= dump.world_size {
        let (rank, world_size) = (dump.rank, dump.world_size);
        return Err(unreadable(format!("rank {rank} in a world of {world_size}")));
    }
    Ok(dump)
}

impl Dump {
    /// Reads the dump at `path`.
    ///
    /// # Errors
    /// [`AnalyzeError::Unreadable`], [`AnalyzeError::Version`].
    pub fn read(path: &Path) -> Result<Self, AnalyzeError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let unreadable = |detail| AnalyzeError::Unreadable { path: path.to_owned(), detail };
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        // The version first: another one may have other fields.
        let Versioned { version } =
            serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
        if version != VERSION {
            return Err(AnalyzeError::Version { path: path.to_owned(), got: version });
        }
        serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))
    }
}

/// Says in what two dumps of the same run must not differ.
fn difference(first: &Dump, second: &Dump) -> Option<String> {
    let differ = |what: &str, a: String, b: String| (a != b).then(|| format!("{what} {a} and {b}"));
    differ("world size", first.world_size.to_string(), second.world_size.to_string())
        .or_else(|| differ("run", first.run_id.clone(), second.run_id.clone()))
        .or_else(|| differ("restart", first.restart.to_string(), second.restart.to_string()))
}

/// Finds a rank whose session began after `dump` was made.
fn stale<'a>(dumps: &'a [Dump], dump: &Dump) -> Option<(&'a Dump, String)> {
    let is_later = |other: &&Dump| dump.dumped.saturating_add(CLOCK_TOLERANCE) < other.began;
    let later = dumps.iter().find(is_later)?;
    let detail = format!(
        "rank {} dumped at {}, before rank {} began at {}",
        dump.rank,
        wall_clock(dump.dumped),
        later.rank,
        wall_clock(later.began)
    );
    Some((later, detail))
}
