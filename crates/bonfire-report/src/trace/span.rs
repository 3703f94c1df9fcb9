use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Which of a rank's activities a span belongs to; they go on at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// The training loop: data, forward, backward, waiting, optimizer.
    Step,
    /// Reductions on their way.
    Communication,
    /// Checkpoints being written.
    Checkpoint,
}

impl Lane {
    /// Every lane, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Step, Self::Communication, Self::Checkpoint];

    /// Returns the name that is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Communication => "communication",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Where it is shown.
    pub lane: Lane,
    /// What was done.
    pub name: Cow<'static, str>,
    /// When it began, in nanoseconds of the run's common clock.
    pub start_ns: i64,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// The optimizer step that it was part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The micro-batch of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u64>,
    /// Bytes that were sent or written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Span {
    /// Makes a span of which no more than name and time is known.
    pub fn new(
        lane: Lane,
        name: impl Into<Cow<'static, str>>,
        start_ns: i64,
        duration_ns: u64,
    ) -> Self {
        let name = name.into();
        Self { lane, name, start_ns, duration_ns, step: None, micro_batch: None, bytes: None }
    }

    /// Sets the optimizer step.
    pub fn with_step(self, step: u64) -> Self {
        Self { step: Some(step), ..self }
    }

    /// Sets the micro-batch of the step.
    pub fn with_micro_batch(self, micro_batch: u64) -> Self {
        Self { micro_batch: Some(micro_batch), ..self }
    }

    /// Sets the bytes that were sent or written.
    pub fn with_bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }
}

/// The spans of a rank, in any order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTrace {
    /// Whose they are.
    pub rank: usize,
    /// What it did.
    pub spans: Vec<Span>,
}

/// Sums the nanoseconds of the lane [`Lane::Step`] by name. A span within another counts for both.
pub fn totals(trace: &RankTrace) -> BTreeMap<String, u64> {
    let mut totals = BTreeMap::new();
    for span in trace.spans.iter().filter(|span| span.lane == Lane::Step) {
        let total: &mut u64 = totals.entry(span.name.to_string()).or_default();
        *total = total.saturating_add(span.duration_ns);
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_those_of_the_training_loop() {
        let spans = vec![
            Span::new(Lane::Step, "forward", 0, 10),
            Span::new(Lane::Step, "data", 10, 1),
            Span::new(Lane::Communication, "forward", 0, 1000),
            Span::new(Lane::Step, "forward", 20, 30),
        ];
        let expected = [("data".to_owned(), 1), ("forward".to_owned(), 40)];
        assert_eq!(totals(&RankTrace { rank: 3, spans }), BTreeMap::from(expected));
        assert!(totals(&RankTrace::default()).is_empty());
    }

    #[test]
    fn traces_travel_as_json() {
        let spans = vec![
            Span::new(Lane::Step, "forward", -5, 10),
            Span::new(Lane::Communication, format!("bucket {}", 3), i64::MAX, u64::MAX)
                .with_step(7)
                .with_micro_batch(1)
                .with_bytes(4096),
        ];
        let trace = RankTrace { rank: 1, spans };
        let json = serde_json::to_string(&trace).unwrap();
        assert!(json.contains(r#"{"lane":"step","name":"forward","start_ns":-5,"#), "{json}");
        assert!(!json.contains("null"), "{json}");
        assert_eq!(serde_json::from_str::<RankTrace>(&json).unwrap(), trace);
    }
}
