use super::tracks::Nesting;
use serde_json::{Map, Value};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The kinds of events that the format has, beside metadata.
const PHASES: [&str; 17] =
    ["X", "B", "E", "I", "i", "C", "b", "n", "e", "s", "t", "f", "N", "O", "D", "P", "R"];
/// What metadata tell, each with the argument that tells it.
const METADATA: [(&str, &str); 5] = [
    ("process_name", "name"),
    ("process_labels", "labels"),
    ("process_sort_index", "sort_index"),
    ("thread_name", "name"),
    ("thread_sort_index", "sort_index"),
];

/// Process and thread.
type Thread = (u64, u64);

/// Checks that a file holds what the trace-event format asks for, and returns how many complete
/// events (`"X"`) it has.
///
/// The format: an object with the list `traceEvents`; every event with `ph`, `pid`, `tid`, `name`
/// and, except metadata, a time of 0 or more; durations of 0 or more; every `"B"` with its `"E"`;
/// metadata that viewers know. Beyond it: two spans of a thread lie one within the other or do not
/// overlap.
///
/// # Errors
/// A sentence about the first event that is not so.
pub fn validate(json: &Value) -> Result<usize, String> {
    let events = json.get("traceEvents").ok_or("the file is no object with \"traceEvents\"")?;
    let events = events.as_array().ok_or("\"traceEvents\" is not a list")?;
    let mut seen = Seen::default();
    for (index, event) in events.iter().enumerate() {
        seen.event(event).map_err(|problem| format!("event {index}: {problem}: {event}"))?;
    }
    if let Some((thread, _)) = seen.begun.iter().find(|(_, begun)| !begun.is_empty()) {
        return Err(format!("{}: a \"B\" has no \"E\"", words(*thread)));
    }
    seen.spans.into_iter().try_for_each(|(thread, spans)| nested(thread, spans))?;
    Ok(seen.num_complete)
}

/// What the events so far have told.
#[derive(Default)]
struct Seen {
    num_complete: usize,
    /// Beginnings and ends in nanoseconds.
    spans: BTreeMap<Thread, Vec<(i128, i128)>>,
    /// Beginnings without an end.
    begun: BTreeMap<Thread, Vec<i128>>,
}

impl Seen {
    fn event(&mut self, event: &Value) -> Result<(), String> {
        let event = event.as_object().ok_or("is no object")?;
        let phase = event.get("ph").and_then(Value::as_str).ok_or("\"ph\" is missing")?;
        let number = |key: &str| {
            let value = event.get(key).and_then(Value::as_u64);
            value.ok_or_else(|| format!("{key:?} is missing or no integer of 0 or more"))
        };
        let thread = (number("pid")?, number("tid")?);
        let name = event.get("name").and_then(Value::as_str);
        // The end of a span may leave its name to the beginning.
        if phase != "E" && name.is_none_or(str::is_empty) {
            return Err("\"name\" is missing".to_owned());
        }
        if phase == "M" {
            return metadata(name.unwrap_or_default(), event);
        }
        if !PHASES.contains(&phase) {
            return Err(format!("phase {phase:?} is not known"));
        }
        let start = nanoseconds(event, "ts")?;
        match phase {
            "X" => {
                self.num_complete += 1;
                let end = start + nanoseconds(event, "dur")?;
                self.spans.entry(thread).or_default().push((start, end));
            }
            "B" => self.begun.entry(thread).or_default().push(start),
            "E" => {
                let begun = self.begun.entry(thread).or_default().pop();
                let begun = begun.ok_or("an \"E\" has no \"B\"")?;
                if start < begun {
                    return Err("an \"E\" comes before its \"B\"".to_owned());
                }
                self.spans.entry(thread).or_default().push((begun, start));
            }
            _ => {}
        }
        Ok(())
    }
}

fn metadata(name: &str, event: &Map<String, Value>) -> Result<(), String> {
    let known = METADATA.iter().find(|(known, _)| *known == name);
    let (_, key) = known.ok_or_else(|| format!("metadata {name:?} are not known"))?;
    let value = event.get("args").and_then(|args| args.get(key));
    let fits = value.is_some_and(|value| match *key {
        "sort_index" => value.is_i64() || value.is_u64(),
        _ => value.is_string(),
    });
    if fits { Ok(()) } else { Err(format!("\"args\" has no fitting {key:?}")) }
}

/// Reads microseconds, to whole nanoseconds, as two sums of decimals may differ by their rounding.
fn nanoseconds(event: &Map<String, Value>, key: &str) -> Result<i128, String> {
    let value = event.get(key).and_then(Value::as_f64);
    let value = value.filter(|value| value.is_finite() && *value >= 0.0);
    let value = value.ok_or_else(|| format!("{key:?} is missing or no number of 0 or more"))?;
    Ok((value * 1000.0).round() as i128)
}

fn nested(thread: Thread, mut spans: Vec<(i128, i128)>) -> Result<(), String> {
    spans.sort_unstable_by_key(|(start, end)| (*start, Reverse(*end)));
    let mut nesting = Nesting::default();
    match spans.into_iter().find(|(start, end)| !nesting.take(*start, *end)) {
        None => Ok(()),
        Some((start, _)) => Err(format!(
            "{}: the span that begins at {} us crosses the end of another",
            words(thread),
            start as f64 / 1000.0
        )),
    }
}

fn words((process, thread): Thread) -> String {
    format!("process {process}, thread {thread}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(events: Value) -> Result<usize, String> {
        validate(&json!({ "traceEvents": events }))
    }

    fn span(ts: f64, dur: f64) -> Value {
        json!({"ph": "X", "pid": 0, "tid": 1, "name": "a", "ts": ts, "dur": dur})
    }

    fn mark(phase: &str, ts: f64) -> Value {
        json!({"ph": phase, "pid": 0, "tid": 1, "name": "a", "ts": ts})
    }

    fn problem(events: Value, words: &str) {
        let problem = of(events).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }

    #[test]
    fn what_the_format_allows_is_counted() {
        assert_eq!(of(json!([])), Ok(0));
        let nested = json!([span(0.0, 10.0), span(10.0, 2.5), span(3.0, 4.0), span(3.0, 1.0)]);
        assert_eq!(of(nested), Ok(4));
        let pairs = json!([
            mark("B", 0.0),
            span(1.0, 1.0),
            mark("B", 2.0),
            mark("E", 3.0),
            mark("E", 3.0),
            mark("i", 9.0)
        ]);
        assert_eq!(of(pairs), Ok(1));
        let other_thread = json!({"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": 5, "dur": 9});
        assert_eq!(of(json!([span(0.0, 10.0), other_thread])), Ok(2));
    }

    #[test]
    fn what_it_does_not_allow_is_named() {
        assert!(validate(&json!([])).unwrap_err().contains("traceEvents"));
        assert!(validate(&json!({"traceEvents": {}})).unwrap_err().contains("not a list"));
        problem(json!([7]), "event 0: is no object");
        for key in ["ph", "pid", "tid", "name", "ts", "dur"] {
            let mut event = span(0.0, 1.0);
            event.as_object_mut().unwrap().remove(key);
            problem(json!([span(0.0, 1.0), event]), &format!("event 1: \"{key}\" is missing"));
        }
        problem(json!([span(-1.0, 1.0)]), "\"ts\" is missing or no number of 0 or more");
        problem(json!([span(1.0, -1.0)]), "\"dur\" is missing or no number of 0 or more");
        problem(json!([span(1.0, f64::NAN)]), "\"dur\"");
        problem(json!([mark("Q", 0.0)]), "phase \"Q\" is not known");
        problem(json!([mark("B", 0.0)]), "process 0, thread 1: a \"B\" has no \"E\"");
        problem(json!([mark("E", 0.0)]), "an \"E\" has no \"B\"");
        problem(json!([mark("B", 2.0), mark("E", 1.0)]), "an \"E\" comes before its \"B\"");
        problem(json!([span(0.0, 10.0), span(5.0, 10.0)]), "begins at 5 us crosses the end");
    }

    #[test]
    fn metadata_are_known_ones() {
        let of_name = |name: &str, args: Value| {
            let event = json!({"ph": "M", "pid": 0, "tid": 0, "name": name, "args": args});
            json!([event])
        };
        assert_eq!(of(of_name("thread_name", json!({"name": "step"}))), Ok(0));
        assert_eq!(of(of_name("process_sort_index", json!({"sort_index": -1}))), Ok(0));
        problem(of_name("process_nam", json!({"name": "a"})), "\"process_nam\" are not known");
        problem(of_name("process_name", json!({"name": 3})), "no fitting \"name\"");
    }
}
