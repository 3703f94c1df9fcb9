//! What is wrong with a configuration, all of it at once.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One thing wrong with a configuration: where it was written, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Dotted path of the key, such as `train.max_epochs`; empty when the whole file is meant.
    pub key: String,
    /// What is wrong and the remedy; names the key, so that it can be read alone.
    pub message: String,
    /// Line in `origin`, counted from 1, where the key was written, when it was.
    pub line: Option<usize>,
    /// File, or `--set key=value`, that the key came from.
    pub origin: String,
    /// The text that the key was written in, and which part of it is meant.
    pub excerpt: Option<Excerpt>,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The whole text: a file, or an override.
    pub text: Arc<str>,
    /// Bytes of it that are meant.
    pub range: Range<usize>,
}

impl Problem {
    /// Makes a problem of a whole source.
    pub(super) fn of_source(origin: &str, message: impl Into<String>) -> Self {
        let (key, message, origin) = (String::new(), message.into(), origin.to_owned());
        Self { key, message, line: None, origin, excerpt: None }
    }

    /// Whether it only follows from another one, whose key could not be read.
    pub(super) fn follows_from(&self, other: &Problem) -> bool {
        self.key == other.key || self.key.starts_with(&format!("{}.", other.key))
    }
}

impl fmt::Display for Problem {
    /// Writes `origin:line: message`, the form that editors and terminals make clickable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.origin, self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}

/// Happens when a configuration cannot be read or resolved; carries every problem found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", list(.problems))]
#[non_exhaustive]
pub struct ConfigError {
    /// The problems in the order in which they were found; never empty.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// Makes an error of one problem, found outside this module.
    pub fn new(problem: Problem) -> Self {
        Self::one(problem)
    }

    /// Makes an error of one problem.
    pub(super) fn one(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }

    /// Turns "no problems" into `Ok(value)`.
    ///
    /// # Errors
    /// All of `problems`, if there are any.
    pub fn check<T>(value: T, problems: Vec<Problem>) -> Result<T, Self> {
        if problems.is_empty() { Ok(value) } else { Err(Self { problems }) }
    }
}

/// Joins problems, one a line.
fn list(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
