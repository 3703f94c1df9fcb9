//! `[early_stopping]`: ends a run when a validation figure has stopped to improve.

use super::checkpoint::Monitor;
use super::resolve::Resolver;
use super::sections::PlateauMode;
use crate::EarlyStopping;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[early_stopping]`: when a run ends before its budget is used up; default: never.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EarlyStoppingSection {
    /// The validation figure that has to improve; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitor: Option<String>,
    /// Which values of it are better, `min` or `max`; default `min` for a figure whose name ends with
    /// `loss`, else `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PlateauMode>,
    /// Validations in a row without improvement that end the run; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// What an improvement has to exceed; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_delta: Option<f64>,
}

/// When a run ends before its budget is used up.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStoppingPlan {
    /// What has to improve.
    pub monitor: Monitor,
    /// Validations in a row without improvement that end the run.
    pub patience: u64,
    /// What an improvement has to exceed.
    pub min_delta: f64,
}

impl EarlyStoppingPlan {
    /// Makes the callback that ends the run.
    pub fn callback(&self) -> EarlyStopping {
        EarlyStopping::new(self.monitor.clone())
            .with_patience(self.patience)
            .with_min_delta(self.min_delta)
    }
}

/// Fills in the defaults and checks the limits.
pub(super) fn resolve(
    section: &EarlyStoppingSection,
    resolver: &mut Resolver<'_>,
) -> Option<EarlyStoppingPlan> {
    let patience = resolver.one_or_more("early_stopping.patience", section.patience.unwrap_or(3));
    let min_delta =
        resolver.zero_or_more("early_stopping.min_delta", section.min_delta.unwrap_or(0.0));
    let Some(metric) = &section.monitor else {
        if *section != EarlyStoppingSection::default() {
            resolver.missing("early_stopping.monitor", "a figure such as \"loss\" or \"accuracy\"");
        }
        return None;
    };
    let monitor = Monitor::new(metric);
    let monitor = match section.mode {
        Some(mode) => monitor.with_mode(mode),
        None => monitor,
    };
    Some(EarlyStoppingPlan { monitor, patience, min_delta })
}

/// Writes the settings back into a section.
pub(super) fn to_section(plan: Option<&EarlyStoppingPlan>) -> EarlyStoppingSection {
    plan.map_or_else(EarlyStoppingSection::default, |plan| EarlyStoppingSection {
        monitor: Some(plan.monitor.metric.clone()),
        mode: Some(plan.monitor.mode),
        patience: Some(plan.patience),
        min_delta: Some(plan.min_delta),
    })
}
