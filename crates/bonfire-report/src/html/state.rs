//! How far a run has come.

use super::{Input, Standing};
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
        let stopped = |summary: &Value| summary.get("stopped") == Some(&Value::Bool(true));
        match (&input.standing, &input.summary) {
            (Standing::Failed(_), _) => State::Failed,
            (Standing::Running, _) | (Standing::AsItsFilesTell, None) => State::Running,
            (_, Some(summary)) if stopped(summary) => State::Stopped,
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
        let early = |summary: &Value| summary.get("stopped_early") == Some(&Value::Bool(true));
        match (self, &input.standing) {
            (_, Standing::Failed(error)) => error.clone(),
            (State::Running, Standing::AsItsFilesTell) => {
                "no summary yet: it goes on, or was killed".to_string()
            }
            (State::Stopped, _) => "before its end; it can be resumed".to_string(),
            (State::Finished, _) if input.summary.as_ref().is_some_and(early) => {
                "early, since it had come far enough".to_string()
            }
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn summaries_and_who_asks_tell_the_state() {
        let of = |summary: Value| State::of(&Input { summary: Some(summary), ..Input::default() });
        assert_eq!(State::of(&Input::default()), State::Running);
        assert_eq!(of(json!({})), State::Finished);
        assert_eq!(of(json!({"stopped": true})), State::Stopped);
        let failed = Standing::Failed("rank 1 is gone".into());
        let input = Input { standing: failed, ..Input::default() };
        assert_eq!(State::of(&input), State::Failed);
        assert_eq!(State::Failed.explained(&input), "rank 1 is gone");
    }
}
