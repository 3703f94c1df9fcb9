use super::tracks::place;
use super::{Lane, RankTrace, Span};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, BufWriter, Write};

/// An event of the format; `Args` is an object.
#[derive(Serialize)]
struct Event<'a, Args> {
    ph: &'a str,
    pid: usize,
    tid: usize,
    name: &'a str,
    #[serde(flatten)]
    time: Option<Time>,
    args: Args,
}

/// Microseconds, as the format has it, with nanoseconds as decimals.
#[derive(Serialize)]
struct Time {
    ts: f64,
    dur: f64,
}

#[derive(Serialize)]
struct SpanArgs {
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    micro_batch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: usize,
}

/// Writes the traces of ranks as one file, with times since the earliest span.
///
/// A rank is the process of its number. Its lanes are the threads 1 (step), 2 (communication) and 3
/// (checkpoint); spans of a lane that cross each other, as a thread's cannot, are spread over the
/// threads 4, 7, 10, ... (step), 5, 8, ... (communication) and so on.
///
/// # Errors
/// If `out` cannot be written.
///
/// # Reference
/// "Trace Event Format" of Chromium, in its object form.
pub fn write(out: impl Write, ranks: &[RankTrace]) -> io::Result<()> {
    let spans = ranks.iter().flat_map(|rank| &rank.spans);
    let earliest_ns = spans.map(|span| span.start_ns).min().unwrap_or(0);
    let mut file = TraceFile { out: BufWriter::new(out), is_empty: true, earliest_ns };
    file.out.write_all(br#"{"displayTimeUnit":"ms","traceEvents":["#)?;
    ranks.iter().try_for_each(|rank| file.rank(rank))?;
    file.out.write_all(b"\n]}\n")?;
    file.out.flush()
}

struct TraceFile<W: Write> {
    out: BufWriter<W>,
    is_empty: bool,
    earliest_ns: i64,
}

impl<W: Write> TraceFile<W> {
    fn rank(&mut self, trace: &RankTrace) -> io::Result<()> {
        let pid = trace.rank;
        let name = format!("rank {pid}");
        self.metadata(pid, 0, "process_name", Name { name: &name })?;
        self.metadata(pid, 0, "process_sort_index", SortIndex { sort_index: pid })?;
        for (lane, number) in Lane::ALL.into_iter().zip(1..) {
            let placed = place(trace.spans.iter().filter(|span| span.lane == lane));
            let thread = |row: usize| number + row * Lane::ALL.len();
            let num_rows = placed.iter().map(|(row, _)| row + 1).max().unwrap_or(0);
            for row in 0..num_rows {
                let name = match row {
                    0 => Cow::Borrowed(lane.name()),
                    _ => Cow::Owned(format!("{} ({})", lane.name(), row + 1)),
                };
                self.metadata(pid, thread(row), "thread_name", Name { name: &name })?;
                // The rows of a lane stand together.
                let sort_index = number * 1000 + row;
                self.metadata(pid, thread(row), "thread_sort_index", SortIndex { sort_index })?;
            }
            placed.iter().try_for_each(|(row, span)| self.span(pid, thread(*row), span))?;
        }
        Ok(())
    }

    fn metadata(
        &mut self,
        pid: usize,
        tid: usize,
        name: &str,
        args: impl Serialize,
    ) -> io::Result<()> {
        self.event(&Event { ph: "M", pid, tid, name, time: None, args })
    }

    fn span(&mut self, pid: usize, tid: usize, span: &Span) -> io::Result<()> {
        let microseconds = |ns: u64| ns as f64 / 1000.0;
        let ts = microseconds(span.start_ns.abs_diff(self.earliest_ns));
        let time = Some(Time { ts, dur: microseconds(span.duration_ns) });
        let Span { step, micro_batch, bytes, .. } = *span;
        let args = SpanArgs { step, micro_batch, bytes };
        self.event(&Event { ph: "X", pid, tid, name: &span.name, time, args })
    }

    /// Writes an event on a line of its own.
    fn event(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.out.write_all(if self.is_empty { b"\n" } else { b",\n" })?;
        self.is_empty = false;
        Ok(serde_json::to_writer(&mut self.out, event)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::validate;
    use serde_json::{Value, json};

    fn written(ranks: &[RankTrace]) -> Value {
        let mut bytes = Vec::new();
        write(&mut bytes, ranks).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn ranks_are_processes_and_lanes_threads() {
        let spans = vec![
            Span::new(Lane::Step, "forward \"a\"", 5_000_000_123, 1_500).with_step(4),
            Span::new(Lane::Communication, "bucket", 5_000_001_123, 7).with_bytes(40),
        ];
        let other = vec![Span::new(Lane::Step, "data", 4_999_999_999, 1).with_micro_batch(2)];
        let json = written(&[RankTrace { rank: 0, spans }, RankTrace { rank: 1, spans: other }]);
        assert_eq!(validate(&json), Ok(3));
        assert_eq!(json["displayTimeUnit"], "ms");
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(
            events[..5],
            [
                json!({"ph": "M", "pid": 0, "tid": 0, "name": "process_name",
                       "args": {"name": "rank 0"}}),
                json!({"ph": "M", "pid": 0, "tid": 0, "name": "process_sort_index",
                       "args": {"sort_index": 0}}),
                json!({"ph": "M", "pid": 0, "tid": 1, "name": "thread_name",
                       "args": {"name": "step"}}),
                json!({"ph": "M", "pid": 0, "tid": 1, "name": "thread_sort_index",
                       "args": {"sort_index": 1000}}),
                json!({"ph": "X", "pid": 0, "tid": 1, "name": "forward \"a\"",
                       "ts": 0.124, "dur": 1.5, "args": {"step": 4}}),
            ]
        );
        assert_eq!(events[7]["tid"], 2);
        assert_eq!(events[7]["args"], json!({"bytes": 40}));
        assert_eq!(events.last().unwrap()["ts"], 0.0);
        assert_eq!(events.len(), 8 + 5);
    }

    #[test]
    fn reductions_that_cross_get_threads_of_their_own() {
        let bucket = |start| Span::new(Lane::Communication, "bucket", start, 10);
        let spans = vec![bucket(0), bucket(5), bucket(10), bucket(15)];
        let json = written(&[RankTrace { rank: 0, spans }]);
        assert_eq!(validate(&json), Ok(4));
        let events = json["traceEvents"].as_array().unwrap();
        let is_span = |event: &&Value| event["ph"] == "X";
        let threads: Vec<_> = events.iter().filter(is_span).map(|event| &event["tid"]).collect();
        assert_eq!(threads, [2, 5, 2, 5]);
        assert!(events.iter().any(|event| event["args"]["name"] == "communication (2)"));
    }

    #[test]
    fn nothing_and_extreme_times_are_written() {
        assert_eq!(validate(&written(&[])), Ok(0));
        assert_eq!(validate(&written(&[RankTrace::default()])), Ok(0));
        let spans = [i64::MIN, i64::MAX].map(|start| Span::new(Lane::Step, "step", start, 0));
        assert_eq!(validate(&written(&[RankTrace { rank: 0, spans: spans.into() }])), Ok(2));
    }

    /// A day of steps whose ends are the beginnings of the next, to the nanosecond.
    #[test]
    fn nanoseconds_survive_the_decimals() {
        let length = 333_333_337;
        let step = |index: i64| Span::new(Lane::Step, "step", index * length, length as u64);
        let spans = (250_000..251_000).chain([0]).map(step).collect();
        assert_eq!(validate(&written(&[RankTrace { rank: 0, spans }])), Ok(1001));
    }
}
