//! How far a run has come.

use super::Input;
use serde_json::Value;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has used its budget, or has come far enough.
    Finished,
    /// It was stopped before its end.
    Stopped,
    /// It ended with an error.
    Failed,
    /// It has no summary yet.
    Running,
}

impl State {
    pub(super) fn of(input: &Input) -> Self {
        let Some(summary) = &input.summary else { return State::Running };
        let is = |key: &str| summary.get(key).and_then(Value::as_bool) == Some(true);
        let has = |key: &str| summary.get(key).is_some_and(|value| !value.is_null());
        match summary.get("state").and_then(Value::as_str) {
            Some("finished") => State::Finished,
            Some("stopped") => State::Stopped,
            Some("failed") => State::Failed,
            Some("running") => State::Running,
            _ if is("failed") || has("error") => State::Failed,
            _ if is("stopped") => State::Stopped,
            _ => State::Finished,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            State::Finished => "finished",
            State::Stopped => "stopped",
            State::Failed => "failed",
            State::Running => "running",
        }
    }

    /// What the word leaves open.
    pub(super) fn explained(self, input: &Input) -> String {
        let field = |key: &str| input.summary.as_ref().and_then(|summary| summary.get(key));
        match self {
            State::Running => "no summary yet: it goes on, or was killed".to_string(),
            State::Stopped => "before its end; it can be resumed".to_string(),
            State::Failed => field("error").and_then(Value::as_str).unwrap_or_default().to_string(),
            State::Finished if field("stopped_early").and_then(Value::as_bool) == Some(true) => {
                "early, since it had come far enough".to_string()
            }
            State::Finished => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn summaries_tell_the_state() {
        let of = |summary: Value| State::of(&Input { summary: Some(summary), ..Input::default() });
        assert_eq!(State::of(&Input::default()), State::Running);
        assert_eq!(of(json!({})), State::Finished);
        assert_eq!(of(json!({"stopped": true})), State::Stopped);
        assert_eq!(of(json!({"stopped": false, "error": null})), State::Finished);
        assert_eq!(of(json!({"error": "rank 1 is gone"})), State::Failed);
        assert_eq!(of(json!({"state": "failed"})), State::Failed);
    }
}
