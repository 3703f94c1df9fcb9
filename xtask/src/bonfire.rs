//! Runs of the `bonfire` program.

use crate::Result;
use crate::cargo::{command, run};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A run of `bonfire train`.
pub(crate) struct Train<'a> {
    /// The program.
    pub(crate) program: &'a Path,
    /// The recipe.
    pub(crate) config: &'a Path,
    pub(crate) ranks: usize,
    pub(crate) overrides: &'a [&'a str],
    /// Checkpoint to continue from.
    pub(crate) resume: Option<PathBuf>,
    /// Folder of the run.
    pub(crate) out: PathBuf,
}

/// What a run came to.
pub(crate) struct Summary(Value);

impl Train<'_> {
    /// Trains, in silence unless it fails, and reads the summary.
    pub(crate) fn run(&self) -> Result<Summary> {
        let log = self.out.with_extension("log");
        let file = std::fs::File::create(&log)?;
        let mut command = command(self.program);
        command.arg("train").arg(self.config);
        command.arg("--nproc-per-node").arg(self.ranks.to_string()).arg("--out").arg(&self.out);
        for value in self.overrides {
            command.args(["--set", value]);
        }
        if let Some(path) = &self.resume {
            command.arg("--resume").arg(path);
        }
        command.env("RAYON_NUM_THREADS", "1").stdout(file.try_clone()?).stderr(file);
        if let Err(error) = run(&mut command) {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("{error}\n{said}").into());
        }
        let text = std::fs::read_to_string(self.out.join("summary.json"))?;
        Ok(Summary(serde_json::from_str(&text)?))
    }
}

impl Summary {
    pub(crate) fn number(&self, key: &str) -> Result<f64> {
        self.0[key].as_f64().ok_or_else(|| format!("summary.json has no number {key}").into())
    }

    /// Fingerprint of the final parameters.
    pub(crate) fn parameters(&self) -> Result<&str> {
        let fingerprint = self.0["parameters_xxh3"].as_str();
        fingerprint.ok_or_else(|| "summary.json has no parameters_xxh3".into())
    }
}
