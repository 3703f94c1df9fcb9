//! The configuration as written.

use std::path::Path;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::checkpoint::CheckpointSection;
use super::choice::{Choice, not_one_of};
use super::data;
use super::distributed::DistributedSection;
use super::early_stopping::EarlyStoppingSection;
use super::error::{ConfigError, Problem};
use super::extends::{self, Document};
use super::overrides;
use super::plan::Plan;
use super::profile::ProfileSection;
use super::sections::{
    AverageSection, ClipSection, DataKind, DataSection, LogSection, ModelSection, OptimizerSection,
    PrecisionSection, ScheduleSection,
};
use super::source::Source;
use super::strict::Reader;
use super::train::TrainSection;

/// A run's configuration as its author wrote it: what was left out is `None`.
///
/// Read one with [`RunConfig::load`] or [`RunConfig::from_toml_str`], or build one in code from
/// `RunConfig::default()`. [`Plan::resolve`] fills in the defaults. Equality compares what is
/// configured, not where it was written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct RunConfig {
    /// Name of the run, part of the run folder's name; default: the model's kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Seed of initialisation, sampling and augmentation; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The model.
    #[serde(skip_serializing_if = "is_default")]
    pub model: ModelSection,
    /// The data.
    #[serde(skip_serializing_if = "is_default")]
    pub data: DataSection,
    /// The length of the run.
    #[serde(skip_serializing_if = "is_default")]
    pub train: TrainSection,
    /// The optimizer.
    #[serde(skip_serializing_if = "is_default")]
    pub optimizer: OptimizerSection,
    /// The course of the learning rate.
    #[serde(skip_serializing_if = "is_default")]
    pub schedule: ScheduleSection,
    /// The number types.
    #[serde(skip_serializing_if = "is_default")]
    pub precision: PrecisionSection,
    /// Gradient clipping.
    #[serde(skip_serializing_if = "is_default")]
    pub clip: ClipSection,
    /// Averages of the weights.
    #[serde(skip_serializing_if = "is_default")]
    pub average: AverageSection,
    /// An end before the budget is used up.
    #[serde(skip_serializing_if = "is_default")]
    pub early_stopping: EarlyStoppingSection,
    /// Communication between ranks.
    #[serde(skip_serializing_if = "is_default")]
    pub distributed: DistributedSection,
    /// Checkpoints.
    #[serde(skip_serializing_if = "is_default")]
    pub checkpoint: CheckpointSection,
    /// Printed progress.
    #[serde(skip_serializing_if = "is_default")]
    pub log: LogSection,
    /// Profiling.
    #[serde(skip_serializing_if = "is_default")]
    pub profile: ProfileSection,
    #[serde(skip)]
    pub(super) source: Source,
}

/// The keys outside every section.
#[derive(Default, Deserialize)]
struct TopLevel {
    name: Option<String>,
    seed: Option<u64>,
    extends: Option<toml::Value>,
}

impl RunConfig {
    /// Reads a configuration from a file.
    ///
    /// # Errors
    /// As [`RunConfig::load_with_overrides`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::load_with_overrides(path, &[])
    }

    /// Reads a configuration from a file and applies `--set` overrides, so that the problems of
    /// both are reported together.
    ///
    /// # Errors
    /// Happens when the file, or one that it extends, cannot be read, is no TOML, or has unknown keys or
    /// wrong types; then the wrong values that [`Plan::resolve`] would find at world size 1 are reported
    /// too.
    pub fn load_with_overrides(
        path: impl AsRef<Path>,
        overrides: &[String],
    ) -> Result<Self, ConfigError> {
        Self::load_what_can_be(path, overrides)?.complete()
    }

    /// Reads a configuration from a file and applies `--set` overrides, and goes on with what can be read
    /// when there are problems, so that all that is wrong can be told at once.
    ///
    /// # Errors
    /// Happens when the file, or one that it extends, cannot be read or is no TOML.
    pub fn load_what_can_be(
        path: impl AsRef<Path>,
        overrides: &[String],
    ) -> Result<Partial, ConfigError> {
        let path = path.as_ref();
        let origin = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let message = format!("cannot read the configuration: {error}; check the path");
            ConfigError::one(Problem::of_source(&origin, message))
        })?;
        Self::read(&text, &origin, path.parent().unwrap_or(Path::new(".")), overrides)
    }

    /// Reads a configuration from text; `origin` names the text in messages. What it extends is looked for
    /// from the current folder on.
    ///
    /// # Errors
    /// As [`RunConfig::load_with_overrides`].
    pub fn from_toml_str(text: &str, origin: &str) -> Result<Self, ConfigError> {
        Self::from_toml_str_with_overrides(text, origin, &[])
    }

    /// Reads a configuration from text and applies `--set` overrides.
    ///
    /// # Errors
    /// As [`RunConfig::load_with_overrides`].
    pub fn from_toml_str_with_overrides(
        text: &str,
        origin: &str,
        overrides: &[String],
    ) -> Result<Self, ConfigError> {
        Self::read(text, origin, Path::new("."), overrides)?.complete()
    }

    fn read(
        text: &str,
        origin: &str,
        folder: &Path,
        overrides: &[String],
    ) -> Result<Partial, ConfigError> {
        let read = extends::read(text, origin, folder);
        let Document { mut table, mut source, mut problems } =
            read.map_err(|problems| ConfigError { problems })?;
        problems.extend(overrides::apply(&mut table, &mut source, overrides));
        Ok(Self::build(table, source, problems))
    }

    /// Applies `--set key=value` overrides.
    ///
    /// A value is TOML (`0.1`, `true`, `[0.9, 0.99]`), or else a string. A dotted key makes the
    /// tables on its way. Of two keys that exclude each other (`train.max_epochs` and
    /// `train.max_steps`, `data.batch_size` and `data.global_batch_size`, `schedule.warmup_steps` and
    /// `schedule.warmup_epochs`), an override takes the place of the other one.
    ///
    /// # Errors
    /// Happens when an override has no `=`, sets a key under something that is no table, or
    /// makes a configuration that could not be loaded; `self` is then unchanged.
    pub fn apply_overrides(&mut self, overrides: &[String]) -> Result<(), ConfigError> {
        let mut document = self.to_table()?;
        let mut source = self.source.clone();
        let problems = overrides::apply(&mut document, &mut source, overrides);
        *self = Self::build(document, source, problems).complete()?;
        Ok(())
    }

    /// Reads the free keys of `[model]` into the model's own configuration, as strictly as every
    /// other section.
    ///
    /// # Errors
    /// Happens when a key is unknown to `T`, missing, or has a wrong type.
    pub fn parse_model<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let mut reader = Reader::new(&self.source);
        let value = reader.read("model", self.model.keys.clone());
        match value {
            Some(value) => ConfigError::check(value, reader.problems),
            None => Err(ConfigError { problems: reader.problems }),
        }
    }

    /// Reads `[data.options]` into the configuration of a data set of the program's own, as strictly as
    /// every other section.
    ///
    /// # Errors
    /// Happens when a key is unknown to `T`, missing, or has a wrong type, or when `[data]` has a key of
    /// a data set that comes with Bonfire.
    pub fn parse_data<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let mut reader = Reader::new(&self.source);
        let foreign = data::foreign(&self.data, None).into_iter();
        let problems = foreign.map(|(key, message)| self.problem(&key, message)).collect();
        reader.problems = problems;
        let value = reader.read("data.options", self.data.options.clone().unwrap_or_default());
        match value {
            Some(value) => ConfigError::check(value, reader.problems),
            None => Err(ConfigError { problems: reader.problems }),
        }
    }

    /// Makes the problem of a `data.kind` that is neither one of Bonfire's nor of the program's `own`,
    /// with the nearest of both.
    pub fn unknown_data_kind(&self, kind: &str, own: &[&str]) -> Problem {
        let known: Vec<&str> = DataKind::WORDS.iter().map(|(word, _)| *word).collect();
        let message = format!("data.kind: {}", not_one_of(kind, &[&known, own].concat()));
        self.source.problem("data.kind", message)
    }

    /// Makes a problem located where `key` was written, for checks made outside this module.
    pub fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        self.source.problem(key, message)
    }

    /// Writes the configuration as TOML, which loads again to an equal configuration.
    ///
    /// # Errors
    /// Happens when a value has no TOML form: an integer above 2^63 - 1, or a path that is no
    /// Unicode; neither can come from a file.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| self.unwritable(&error))
    }

    pub(super) fn to_table(&self) -> Result<Table, ConfigError> {
        Table::try_from(self).map_err(|error| self.unwritable(&error))
    }

    fn unwritable(&self, error: &toml::ser::Error) -> ConfigError {
        let message = format!("cannot be written as TOML: {error}");
        ConfigError::one(self.source.problem("", message))
    }

    /// Reads every section of a parsed document.
    fn build(mut document: Table, source: Source, mut problems: Vec<Problem>) -> Partial {
        let mut reader = Reader::new(&source);
        let mut config = Self {
            model: reader.section(&mut document, "model"),
            data: reader.section(&mut document, "data"),
            train: reader.section(&mut document, "train"),
            optimizer: reader.section(&mut document, "optimizer"),
            schedule: reader.section(&mut document, "schedule"),
            precision: reader.section(&mut document, "precision"),
            clip: reader.section(&mut document, "clip"),
            average: reader.section(&mut document, "average"),
            early_stopping: reader.section(&mut document, "early_stopping"),
            distributed: reader.section(&mut document, "distributed"),
            checkpoint: reader.section(&mut document, "checkpoint"),
            log: reader.section(&mut document, "log"),
            profile: reader.section(&mut document, "profile"),
            ..Self::default()
        };
        let top: TopLevel = reader.read("", document).unwrap_or_default();
        (config.name, config.seed) = (top.name, top.seed);
        if top.extends.is_some() {
            let message = "extends: belongs into the file; here it would come too late";
            reader.problems.push(source.problem("extends", message));
        }
        problems.append(&mut reader.problems);
        config.source = source;
        Partial { config, problems }
    }
}

/// A configuration as far as it could be read, and what is wrong with the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// What could be read; the rest is as if it had not been written.
    pub config: RunConfig,
    /// What could not.
    pub problems: Vec<Problem>,
}

impl Partial {
    /// Adds what a further check has found, but for what only follows from a key that could not be read.
    pub fn add<T>(&mut self, checked: Result<T, ConfigError>) -> Option<T> {
        let error = match checked {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let follows =
            |problem: &Problem| self.problems.iter().any(|known| problem.follows_from(known));
        let further: Vec<_> =
            error.problems.into_iter().filter(|problem| !follows(problem)).collect();
        self.problems.extend(further);
        None
    }

    /// All problems, of which a failed check has left at least one.
    pub fn into_error(self) -> ConfigError {
        ConfigError { problems: self.problems }
    }

    /// The configuration, if nothing is wrong with it.
    ///
    /// # Errors
    /// All problems, and with them the wrong values that [`Plan::resolve`] would find at world size 1.
    pub fn complete(mut self) -> Result<RunConfig, ConfigError> {
        if !self.problems.is_empty() {
            let resolved = Plan::resolve(&self.config, 1);
            self.add(resolved);
        }
        ConfigError::check(self.config, self.problems)
    }
}

fn is_default<T: Default + PartialEq>(section: &T) -> bool {
    *section == T::default()
}
