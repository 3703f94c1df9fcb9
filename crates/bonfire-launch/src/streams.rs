//! Where what the ranks print goes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// Streams of a rank, by torchrun's numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Std {
    /// 0: neither.
    #[default]
    None,
    /// 1: standard output.
    Out,
    /// 2: standard error.
    Err,
    /// 3: both.
    All,
}

impl Std {
    pub(crate) fn has(self, stream: Stream) -> bool {
        match self {
            Self::None => false,
            Self::Out => stream == Stream::Out,
            Self::Err => stream == Stream::Err,
            Self::All => true,
        }
    }

    fn of_number(text: &str) -> Result<Self, String> {
        match text.trim() {
            "0" => Ok(Self::None),
            "1" => Ok(Self::Out),
            "2" => Ok(Self::Err),
            "3" => Ok(Self::All),
            other => Err(format!(
                "{other:?} is no stream: 0 is none, 1 standard output, 2 standard error, 3 both"
            )),
        }
    }
}

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

impl Stream {
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Out => "stdout.log",
            Self::Err => "stderr.log",
        }
    }
}

/// Streams for all ranks of a node alike (`3`), or for some by local rank (`0:3,1:2`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StdByRank {
    all: Std,
    of: BTreeMap<usize, Std>,
}

impl StdByRank {
    pub(crate) fn has(&self, local_rank: usize, stream: Stream) -> bool {
        self.of.get(&local_rank).copied().unwrap_or(self.all).has(stream)
    }

    /// Whether any rank has any.
    pub fn is_any(&self) -> bool {
        self.all != Std::None || self.of.values().any(|std| *std != Std::None)
    }
}

impl FromStr for StdByRank {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains(':') {
            return Ok(Self { all: Std::of_number(text)?, of: BTreeMap::new() });
        }
        let pair = |entry: &str| {
            let (rank, std) = entry.split_once(':').ok_or("write 3, or 0:3,1:2 by local rank")?;
            let rank = rank.trim().parse().map_err(|_| format!("{rank:?} is no local rank"))?;
            Ok::<_, String>((rank, Std::of_number(std)?))
        };
        Ok(Self { all: Std::None, of: text.split(',').map(pair).collect::<Result<_, _>>()? })
    }
}

/// How a line of a rank says which rank it is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Labels {
    /// By `[rank 3]` before it.
    #[default]
    Words,
    /// As a JSON object, which knows its rank; what is none becomes the `message` of one.
    Json,
}

/// Where the lines of ranks go on the launcher's side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Console {
    /// Those of all ranks, labelled, to the launcher's stream of the same name.
    #[default]
    EachToItsOwn,
    /// Rank 0 has the launcher's streams for itself, so that its progress bar sees the terminal; the
    /// lines of the others go to standard error.
    FirstHasTheTerminal,
}

/// Where what the ranks print goes.
#[derive(Debug, Clone, Default)]
pub struct Streams {
    /// How lines on the console are labelled.
    pub labels: Labels,
    /// Where they go.
    pub console: Console,
    /// Local ranks whose lines are shown; `None` shows all.
    pub shown: Option<Vec<usize>>,
    /// Folder of the logs: `attempt_0/2/stderr.log` is what rank 2 has said before any restart.
    pub logs: Option<PathBuf>,
    /// What goes to the logs and not to the console.
    pub redirects: StdByRank,
    /// What goes to both.
    pub tee: StdByRank,
}

impl Streams {
    pub(crate) fn is_shown(&self, local_rank: usize) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.contains(&local_rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_chosen_as_for_torchrun() {
        let all: StdByRank = "3".parse().unwrap();
        assert!(all.has(0, Stream::Out) && all.has(7, Stream::Err));
        let some: StdByRank = "0:1,2:3".parse().unwrap();
        assert!(some.has(0, Stream::Out) && !some.has(0, Stream::Err) && !some.has(1, Stream::Out));
        assert!(some.has(2, Stream::Err));
        assert!(!StdByRank::default().is_any() && some.is_any());
        for wrong in ["4", "x", "0:9", "a:1", "0:1,2"] {
            assert!(wrong.parse::<StdByRank>().is_err(), "{wrong}");
        }
    }
}
