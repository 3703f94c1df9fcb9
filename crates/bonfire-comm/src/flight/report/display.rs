//! The report in words.

use std::fmt;

use super::{
    BehindRank, DumpSummary, Failure, Finding, GroupSummary, LateCall, Mismatch, OpenMessage,
    RecordedCall, Report, Row, Side, Standstill, Straggler, TimedCall,
};
use crate::flight::dump::is_message;
use crate::flight::words::{duration, form, ranks, table, wall_clock};
use crate::flight::{Reason, State};

/// Nanoseconds that ranks may wait for each other while all is well.
const ORDINARY_WAIT: u64 = 100_000_000;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.missing.is_empty() {
            let (they, were) =
                (form(&self.missing, "it", "they"), form(&self.missing, "was", "were"));
            writeln!(
                f,
                "{} left no dump: {they} did not fail in a collective and {were} not asked for \
                 one, or {they} {were} killed first",
                ranks(&self.missing),
            )?;
        }
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        if self.findings.is_empty() {
            let other = if self.missing.is_empty() { "" } else { "else " };
            writeln!(
                f,
                "nothing {other}stands out: no rank waits for another, and no call has failed"
            )?;
        }
        let Self { run_id, restart, world_size, .. } = self;
        writeln!(f, "\nrun {run_id:?}, restart {restart}, {world_size} ranks")?;
        let rows: Vec<_> = self.dumps.iter().map(DumpSummary::cells).collect();
        let head = ["rank", "evicted", "pid", "host", "dumped", "because of"];
        f.write_str(&table(&head, &rows, 3))?;
        self.groups.iter().try_for_each(|group| write!(f, "\n{group}"))
    }
}

impl DumpSummary {
    fn cells(&self) -> Vec<String> {
        let reason = match self.reason {
            Reason::Request => "a request",
            Reason::Failure(_) => "a failure",
        };
        let (rank, evicted, pid) = (self.rank, self.evicted, self.pid);
        let (host, dumped) = (self.host.clone(), wall_clock(self.dumped));
        vec![rank.to_string(), evicted.to_string(), pid.to_string(), host, dumped, reason.into()]
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch(finding) => finding.fmt(f),
            Self::Standstill(finding) => finding.fmt(f),
            Self::OpenMessage(finding) => finding.fmt(f),
            Self::Failure(finding) => finding.fmt(f),
            Self::Straggler(finding) => finding.fmt(f),
        }
    }
}

/// Without group and place: `all_reduce(sum) of 1000 f32 [sequence 41]`.
impl fmt::Display for RecordedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        if self.operation != "barrier" {
            write!(f, " of {} {}", self.count, self.dtype)?;
        }
        let number = if is_message(&self.operation) { "message" } else { "sequence" };
        self.sequence.map_or(Ok(()), |sequence| write!(f, " [{number} {sequence}]"))
    }
}

impl RecordedCall {
    /// Where it was called.
    fn place(&self) -> String {
        let label = self.label.as_ref().map_or_else(String::new, |label| format!(" for {label:?}"));
        format!("(called at {}{label})", self.site)
    }

    fn with_group(&self) -> String {
        format!("{self} of group {:?} {}", self.group, self.place())
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, sequence, sides } = self;
        let side = |Side { ranks: who, call }: &Side| {
            format!("{} called {call} {}", ranks(who), call.place())
        };
        let sides: Vec<String> = sides.iter().map(side).collect();
        write!(
            f,
            "the ranks of group {group:?} part at sequence {sequence}: {}; every rank must call \
             the same collectives in the same order with the same type and length",
            sides.join(", ")
        )
    }
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, sequence, .. } = self;
        let call = self.call.as_ref().map_or_else(
            || format!("collective {sequence}"),
            |call| format!("{call} {}", call.place()),
        );
        let mut clauses = Vec::new();
        if let [first, ..] = self.behind.as_slice() {
            let behind: Vec<usize> = self.behind.iter().map(|behind| behind.rank).collect();
            let (is, has) = (form(&behind, "is", "are"), form(&behind, "it has", "they have"));
            let progress = if first.entered == first.finished {
                format!("finished {}", first.finished)
            } else {
                format!("entered {} and finished {}", first.entered, first.finished)
            };
            write!(f, "{} {is} behind: {has} {progress} of the collectives", ranks(&behind))?;
            write!(f, " of group {group:?}, ")?;
        } else {
            write!(f, "group {group:?} stands still: ")?;
        }
        clauses.extend(self.waiting_clause(&call, false));
        clauses.extend(self.waiting_clause(&call, true));
        clauses.extend(self.finished_clause(&call));
        clauses.extend(self.behind.iter().flat_map(BehindRank::clauses));
        if !self.outdated.is_empty() {
            let whose = ranks(&self.outdated);
            clauses.push(format!(
                "the dump of {whose} is too old to tell; dump all ranks at the same time"
            ));
        }
        if let Some(absence) = &self.absence {
            clauses.push(format!("{absence}, so that it is unknown who has entered it"));
        }
        if self.behind.is_empty() && self.outdated.is_empty() && self.absence.is_none() {
            clauses.push(
                "all ranks have entered it: the network, a device or a rank inside it is slow"
                    .to_owned(),
            );
        }
        if self.is_ordinary() {
            clauses.push("so short a wait may be ordinary progress".to_owned());
        }
        f.write_str(&clauses.join("; "))
    }
}

impl Standstill {
    fn waiting_clause(&self, call: &str, failed: bool) -> Option<String> {
        let chosen: Vec<_> = self.waiting.iter().filter(|rank| rank.failed == failed).collect();
        let who: Vec<usize> = chosen.iter().map(|waiting| waiting.rank).collect();
        let since = wall_clock(chosen.iter().map(|waiting| waiting.since).min()?);
        let waited = duration(chosen.iter().map(|waiting| waiting.waited).max()?);
        let ranks = if who.len() > 1
            && !self.behind.is_empty()
            && self.num_known() == self.behind.len() + who.len()
        {
            format!("the others, {},", ranks(&who))
        } else {
            ranks(&who)
        };
        Some(if failed {
            format!("{ranks} waited in {call} for {waited}, from {since} until it failed")
        } else {
            let wait = form(&who, "waits", "wait");
            format!("{ranks} {wait} in {call} since {waited} ({since})")
        })
    }

    fn num_known(&self) -> usize {
        self.waiting.len() + self.finished.len() + self.behind.len() + self.outdated.len()
    }

    fn finished_clause(&self, call: &str) -> Option<String> {
        let is = form(&self.finished, "is", "are");
        let call = if self.waiting.is_empty() { call } else { "it" };
        let since = self.since.filter(|_| self.waiting.is_empty());
        let since =
            since.map_or_else(String::new, |since| format!(", begun {}", wall_clock(since)));
        let who = ranks(&self.finished);
        (!self.finished.is_empty()).then(|| format!("{who} {is} through with {call}{since}"))
    }

    fn is_ordinary(&self) -> bool {
        let has_failed = self.waiting.iter().any(|waiting| waiting.failed);
        !has_failed && self.lasted.is_some_and(|lasted| lasted < ORDINARY_WAIT)
    }
}

impl BehindRank {
    fn clauses(&self) -> Vec<String> {
        let rank = self.rank;
        let mut clauses = Vec::new();
        if let Some(LateCall { call, late, failed }) = &self.called {
            let late = late.map_or_else(String::new, |late| {
                format!(" {} after the first of them", duration(late))
            });
            let then =
                if *failed { "when the session had failed" } else { "and waits for its turn" };
            clauses.push(format!("rank {rank} called it {}{late}, {then}", call.place()));
        }
        if let Some(TimedCall { call, ago, .. }) = &self.open {
            let (call, time) = (call.with_group(), duration(*ago));
            clauses.push(format!("rank {rank} has been in {call} for {time}"));
        }
        clauses.push(match &self.last {
            Some(TimedCall { call, ago, .. }) => format!(
                "the last call that rank {rank} finished is {}, {} before its dump",
                call.with_group(),
                duration(*ago)
            ),
            None => format!("rank {rank} has finished no call"),
        });
        clauses
    }
}

impl fmt::Display for OpenMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, call, waited) = (self.rank, self.call.with_group(), duration(self.waited));
        write!(f, "rank {rank} waits in {call} since {waited} ({})", wall_clock(self.since))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, call, at) = (ranks(&self.ranks), self.call.with_group(), wall_clock(self.at));
        let first = if self.ranks.len() > 1 { ", first" } else { "" };
        write!(f, "{who} failed{first} in {call} at {at}: {}", self.error)
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, rank, num_collectives, .. } = self;
        let (late, next) = (duration(self.late), duration(self.next_late));
        write!(
            f,
            "rank {rank} comes late: in {num_collectives} collectives of group {group:?} it called \
             {late} after the first rank (median), the next latest rank {next}"
        )?;
        let caution = "; the ranks are on several machines, whose clocks may differ";
        f.write_str(if self.several_hosts { caution } else { "" })
    }
}

impl fmt::Display for GroupSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {:?} of {} rank(s)", self.group, self.size)?;
        self.absence.iter().try_for_each(|absence| write!(f, "; {absence}"))?;
        f.write_str("\n")?;
        let rows: Vec<_> = self.rows.iter().map(Row::cells).collect();
        let head = ["rank", "in group", "entered", "finished", "last collective", "state"];
        f.write_str(&table(&head, &rows, 4))
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let numbers = [self.rank as u64, self.rank_in_group as u64, self.entered, self.finished];
        let mut cells: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let Some(TimedCall { call, state, ago }) = &self.last else {
            cells.extend(["-".to_owned(), "-".to_owned()]);
            return cells;
        };
        let time = duration(*ago);
        cells.push(call.to_string());
        cells.push(match state {
            State::Created => format!("waits for its turn for {time}"),
            State::Started => format!("in it for {time}"),
            State::Finished => format!("finished {time} before the dump"),
            State::Failed => format!("failed {time} before the dump"),
        });
        cells
    }
}
