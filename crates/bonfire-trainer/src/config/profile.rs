//! `[profile]`: what a run measures of itself.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resolve::Resolver;

/// `[profile]`: which steps are measured closely, for a trace of all ranks and a verdict on where their time
/// goes; default none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileSection {
    /// Optimizer steps that are measured, counted from 0: `"10..20"` is ten of them from number 10 on; default
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<String>,
}

/// Most steps of a profile: each is a score of spans on every rank.
const MOST: u64 = 10_000;

/// Checks the steps.
pub(super) fn resolve(section: &ProfileSection, resolver: &mut Resolver<'_>) -> Option<Range<u64>> {
    let written = section.steps.as_ref()?;
    let parsed = written.split_once("..").and_then(|(first, end)| {
        let steps = first.trim().parse::<u64>().ok()?..end.trim().parse::<u64>().ok()?;
        (!steps.is_empty()).then_some(steps)
    });
    if parsed.as_ref().is_some_and(|steps| steps.end - steps.start > MOST) {
        let message = format!(
            "profile.steps = {written:?}: at most {MOST} steps, whose traces fit into memory and into a browser"
        );
        resolver.reject("profile.steps", message);
        return None;
    }
    if parsed.is_none() {
        let message = format!(
            "profile.steps = {written:?}: write FIRST..END with numbers of steps, such as \"10..20\" for \
             ten steps from number 10 on"
        );
        resolver.reject("profile.steps", message);
    }
    parsed
}

/// Writes the settings back into a section.
pub(super) fn to_section(steps: Option<&Range<u64>>) -> ProfileSection {
    ProfileSection { steps: steps.map(|steps| format!("{}..{}", steps.start, steps.end)) }
}
