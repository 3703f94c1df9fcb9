//! The report of a run: one HTML file that asks for nothing beyond itself.
//!
//! Everything can be seen without scripts; a small one shows the values under the pointer.

mod cards;
mod confusion;
mod figures;
mod folder;
mod model;
mod page;
mod ranks;
mod state;
mod tables;
mod verdict;

use crate::history::Row;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the report in the folder of a run.
pub const FILE_NAME: &str = "report.html";

/// Whether a run goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Standing {
    /// It trains: a summary that is there is of an earlier part of it.
    Running,
    /// It has ended with an error.
    Failed(String),
    /// Its summary tells, if there is one.
    #[default]
    AsItsFilesTell,
}

/// What is known of a run; whatever is missing is left out of its report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Input {
    /// Name of the run.
    pub name: String,
    /// Whether it goes on.
    pub standing: Standing,
    /// The rows of `metrics.jsonl`.
    pub rows: Vec<Row>,
    /// The resolved configuration, as TOML.
    pub config: Option<String>,
    /// The content of `summary.json`. Fields without a place of their own are listed in a table.
    pub summary: Option<Value>,
    /// The content of `environment.json`: what the run ran on, by name.
    pub environment: Option<Value>,
    /// The content of `model_summary.json`: parameters, memory and arithmetic of every layer.
    pub model: Option<Value>,
    /// The content of `profile/verdict.json`; see [`Verdict`](crate::verdict::Verdict).
    pub verdict: Option<Value>,
}

impl Input {
    /// Reads the files of a run's folder, each of which may be missing. The run is named like its folder,
    /// and stands as its files tell.
    ///
    /// # Errors
    /// Those of reading, and [`io::ErrorKind::InvalidData`] naming the file that is not as it should be.
    pub fn read(folder: &Path) -> io::Result<Self> {
        folder::read(folder)
    }
}

/// The report as HTML.
pub fn render(input: &Input) -> String {
    page::render(input)
}

/// Writes `report.html` into the folder of a run from the files there, and returns its path. Whoever opens
/// it meanwhile sees the report that was there, or the new one.
///
/// # Errors
/// Those of [`Input::read`] and of writing.
pub fn write(folder: &Path, standing: Standing) -> io::Result<PathBuf> {
    let mut input = Input::read(folder)?;
    if standing != Standing::AsItsFilesTell {
        input.summary = None;
    }
    let html = render(&Input { standing, ..input });
    folder::write(folder, &html)
}
