//! `[checkpoint]`: when to save, and what stays.

use super::choice::choice;
use super::resolve::Resolver;
use super::sections::PlateauMode;
use crate::{Metrics, TrainError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

choice! {
    /// What follows when a checkpoint cannot be written.
    OnError {
        /// The run goes on.
        Continue = "continue",
        /// The run ends.
        Stop = "stop",
    }
}

/// `[checkpoint]`: when to save and how much to keep. The end of a run and an interrupt always
/// save.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointSection {
    /// Optimizer steps between two checkpoints; default: none by steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_n_steps: Option<u64>,
    /// Epochs between two checkpoints; default 1; 0 saves none by epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_n_epochs: Option<u64>,
    /// Minutes between two checkpoints, by rank 0's clock; default: none by time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_n_minutes: Option<f64>,
    /// Whether the checkpoint with the best validation is kept, whatever its age; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<bool>,
    /// Validation figure that the best is measured by (`keep_best`); default `loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitor: Option<String>,
    /// Whether a small or a large figure is good (`keep_best`): `min` or `max`; default `min` for a
    /// figure whose name ends with `loss`, else `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PlateauMode>,
    /// Whether training goes on while a checkpoint is written; default true. Where the disk is slower
    /// than checkpoints come, some are then left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asynchronous: Option<bool>,
    /// What a failure to write one does: `continue` (the default) goes on, with an error in the log;
    /// `stop` ends the run. The checkpoint at the end has to be written in either case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// Newest checkpoints that are kept; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<usize>,
}

/// When to save and how much to keep. The end of a run and an interrupt always save.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointPlan {
    /// Optimizer steps between two checkpoints; `None` saves none by steps.
    pub every_n_steps: Option<u64>,
    /// Epochs between two checkpoints; 0 saves none by epochs.
    pub every_n_epochs: u64,
    /// Time between two checkpoints by rank 0's clock; `None` saves none by time.
    pub every: Option<Duration>,
    /// Newest checkpoints that are kept.
    pub keep_last: usize,
    /// What the best one is measured by, if it is kept whatever its age.
    pub keep_best: Option<Monitor>,
    /// Whether training goes on while one is written; else it waits.
    pub asynchronous: bool,
    /// What follows when one cannot be written.
    pub on_error: OnError,
}

/// A validation figure by which models are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// Its name.
    pub metric: String,
    /// Whether small or large ones are good.
    pub mode: PlateauMode,
}

impl Default for CheckpointPlan {
    fn default() -> Self {
        Self {
            every_n_steps: None,
            every_n_epochs: 1,
            every: None,
            keep_last: 3,
            keep_best: None,
            asynchronous: true,
            on_error: OnError::Continue,
        }
    }
}

impl Monitor {
    /// A figure of which small ones are good if its name ends with `loss`, and else large ones.
    pub fn new(metric: impl Into<String>) -> Self {
        let metric = metric.into();
        let mode = if metric.ends_with("loss") { PlateauMode::Min } else { PlateauMode::Max };
        Self { metric, mode }
    }

    /// Sets which figures are good.
    pub fn with_mode(self, mode: PlateauMode) -> Self {
        Self { mode, ..self }
    }

    /// The error of a validation that has no such figure.
    pub(crate) fn missing(&self, key: &'static str, validated: &Metrics) -> TrainError {
        let known = validated.0.iter().map(|value| value.name.clone()).collect();
        TrainError::NothingToMonitor { key, metric: self.metric.clone(), known }
    }
}

impl CheckpointPlan {
    /// Writes the settings back into a section.
    pub(super) fn to_section(&self) -> CheckpointSection {
        let monitor = self.keep_best.as_ref();
        CheckpointSection {
            every_n_steps: self.every_n_steps,
            every_n_epochs: Some(self.every_n_epochs),
            every_n_minutes: self.every.map(|every| every.as_secs_f64() / 60.0),
            keep_last: Some(self.keep_last),
            keep_best: Some(monitor.is_some()),
            monitor: monitor.map(|monitor| monitor.metric.clone()),
            mode: monitor.map(|monitor| monitor.mode),
            asynchronous: Some(self.asynchronous),
            on_error: Some(self.on_error),
        }
    }
}

/// Fills in the defaults and checks the limits.
pub(super) fn resolve(section: &CheckpointSection, resolver: &mut Resolver<'_>) -> CheckpointPlan {
    if section.every_n_steps == Some(0) {
        let message = "checkpoint.every_n_steps = 0: must be 1 or more; leave it out for none";
        resolver.reject("checkpoint.every_n_steps", message);
    }
    let every = section.every_n_minutes.map(|minutes| {
        resolver.above_zero("checkpoint.every_n_minutes", minutes);
        Duration::try_from_secs_f64(minutes * 60.0).unwrap_or(Duration::MAX)
    });
    let keep_last = section.keep_last.unwrap_or(3);
    resolver.check("checkpoint.keep_last", keep_last, keep_last > 0, "must be 1 or more");
    CheckpointPlan {
        every_n_steps: section.every_n_steps,
        every_n_epochs: section.every_n_epochs.unwrap_or(1),
        every,
        keep_last,
        keep_best: keep_best(section, resolver),
        asynchronous: section.asynchronous.unwrap_or(true),
        on_error: section.on_error.unwrap_or(OnError::Continue),
    }
}

fn keep_best(section: &CheckpointSection, resolver: &mut Resolver<'_>) -> Option<Monitor> {
    if section.keep_best != Some(true) {
        let of_best = [
            ("checkpoint.monitor", section.monitor.is_some()),
            ("checkpoint.mode", section.mode.is_some()),
        ];
        for (key, _) in of_best.into_iter().filter(|(_, set)| *set) {
            let message =
                format!("{key} belongs to checkpoint.keep_best = true: set that, or remove it");
            resolver.reject(key, message);
        }
        return None;
    }
    let monitor = Monitor::new(section.monitor.clone().unwrap_or_else(|| "loss".to_string()));
    Some(Monitor { mode: section.mode.unwrap_or(monitor.mode), ..monitor })
}
