//! From notes and collectives to spans and sums.

use super::Profiling;
use crate::timing::{Note, Part, What};
use bonfire_comm::flight::{Entry, Recorder};
use bonfire_report::trace::{Lane, Span};
use bonfire_report::verdict::RankTimes;
use std::time::{Duration, Instant, UNIX_EPOCH};

impl Profiling {
    /// Takes the collectives that have ended since the last time.
    pub(super) fn take_entries(&mut self, recorder: &Recorder) {
        for entry in recorder.entries_from(self.next_entry) {
            if entry.finished.is_none() {
                break;
            }
            self.next_entry = entry.id + 1;
            self.entries.push(entry);
        }
    }

    /// Everything that happened, by this rank's clock.
    pub(super) fn spans(&self, notes: &[Note]) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::with_capacity(notes.len() + self.entries.len());
        for note in notes {
            let lane = match note.what {
                What::Checkpoint => Lane::Checkpoint,
                _ => Lane::Step,
            };
            let start = self.at(note.start);
            let span = Span::new(lane, note.what.name(), start, nanoseconds(note.duration));
            let span = span.with_step(note.step);
            spans.push(match note.micro_batch {
                Some(micro_batch) => span.with_micro_batch(micro_batch),
                None => span,
            });
        }
        spans.extend(self.entries.iter().filter_map(reduction));
        spans
    }

    /// A moment in nanoseconds since 1970.
    fn at(&self, moment: Instant) -> i64 {
        let (instant, time) = self.anchor;
        let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let after = moment.saturating_duration_since(instant);
        i64::try_from((since_1970 + after).as_nanos()).unwrap_or(i64::MAX)
    }

    /// Sums of it.
    pub(super) fn times(
        &self,
        rank: usize,
        steps: u64,
        bytes_sent: u64,
        notes: &[Note],
    ) -> RankTimes {
        let sum = |what: What| {
            let found = notes.iter().filter(|note| note.what == what);
            found.map(|note| note.duration).sum::<Duration>().as_secs_f64()
        };
        let part = |part: Part| sum(What::Part(part));
        RankTimes {
            rank,
            steps,
            total_s: covered(notes).as_secs_f64(),
            data_s: part(Part::Data),
            forward_s: part(Part::Forward),
            backward_s: part(Part::Backward),
            comm_wait_s: part(Part::CommWait),
            optimizer_s: part(Part::Optimizer),
            checkpoint_s: sum(What::Checkpoint),
            comm_busy_s: self.busy().as_secs_f64(),
            bytes_sent,
        }
    }

    /// Time in which at least one collective was under way.
    fn busy(&self) -> Duration {
        let ended = self.entries.iter().filter(|entry| is_shown(entry));
        Duration::from_nanos(union(
            ended.filter_map(|entry| Some((entry.started?, entry.finished?))),
        ))
    }
}

/// The time of all steps and of what training has waited for between them.
fn covered(notes: &[Note]) -> Duration {
    let Some(first) = notes.iter().map(|note| note.start).min() else { return Duration::ZERO };
    let of_loop = notes.iter().filter(|note| note.what == What::Step || !note.within);
    let times = of_loop.map(|note| {
        let start = nanoseconds(note.start - first);
        (start, start + nanoseconds(note.duration))
    });
    Duration::from_nanos(union(times))
}

/// How much time intervals cover, which may overlap.
fn union(times: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut times: Vec<(u64, u64)> = times.collect();
    times.sort_unstable();
    let (mut covered, mut until) = (0, 0);
    for (start, end) in times {
        covered += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    covered
}

/// Whether a collective is one of the training step's: what the trainer itself asks is not.
fn is_shown(entry: &Entry) -> bool {
    !entry.group.contains("control")
}

fn reduction(entry: &Entry) -> Option<Span> {
    let (start, end) = (entry.started?, entry.finished?);
    if !is_shown(entry) {
        return None;
    }
    let name = match &entry.label {
        Some(label) => format!("{label}: {}", entry.operation),
        None => entry.operation.clone(),
    };
    let start_ns = i64::try_from(start).unwrap_or(i64::MAX);
    let span = Span::new(Lane::Communication, name, start_ns, end.saturating_sub(start));
    Some(span.with_bytes(entry.bytes as u64))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_counted_once_and_parts_of_a_step_not_at_all() {
        assert_eq!(union([(5, 8), (0, 3), (2, 4), (6, 7)].into_iter()), 7);
        let begin = Instant::now();
        let note = |what, within, start, duration| Note {
            what,
            step: 3,
            micro_batch: None,
            within,
            start: begin + Duration::from_millis(start),
            duration: Duration::from_millis(duration),
        };
        let notes = [
            note(What::Part(Part::Forward), true, 0, 6),
            note(What::Step, false, 0, 10),
            // The end of a step, which a checkpoint has waited for.
            note(What::Part(Part::Optimizer), false, 12, 2),
            note(What::Checkpoint, false, 11, 5),
        ];
        assert_eq!(covered(&notes), Duration::from_millis(15));
        assert_eq!(covered(&[]), Duration::ZERO);
    }
}
