//! A few steps at one batch size, in a process of its own: one that takes more memory than there is ends
//! only itself.

use super::search::{Attempt, Trial};
use crate::CliError;
use crate::args::BatchFindArgs;
use crate::process::rank_of_this_process;
use bonfire_trainer::{Callback, FitReport, StepEnd, TrainError};
use serde::{Deserialize, Serialize};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What a run under trial writes down.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    images_per_s: f64,
    seconds_per_step: f64,
    peak_memory_bytes: u64,
}

/// Starts runs under trial.
pub(super) struct Trials<'a> {
    args: &'a BatchFindArgs,
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl<'a> Trials<'a> {
    pub(super) fn new(args: &'a BatchFindArgs) -> Result<Self, CliError> {
        let failed = |action, path: &str| {
            let path = path.into();
            move |source| CliError::Io { action, path, source }
        };
        let program = std::env::current_exe().map_err(failed("finding", "this program"))?;
        let folder = tempfile::tempdir().map_err(failed("making", "a folder for the trials"))?;
        Ok(Self { args, program, folder })
    }

    /// Trains with a batch size; the first step, in which everything is made ready, does not count.
    pub(super) fn run(&self, batch_size: usize) -> Result<Attempt, CliError> {
        let record = self.folder.path().join(format!("{batch_size}.json"));
        let mut command = Command::new(&self.program);
        command.args(["--quiet", "train"]).arg(&self.args.config);
        for value in &self.args.overrides {
            command.args(["--set", value]);
        }
        command
            .arg("--set")
            .arg(format!("train.fast_dev_run={}", self.args.steps_per_trial + 1))
            .arg("--set")
            .arg(format!("data.batch_size={batch_size}"))
            .args(["--set", "train.check_val_every_n_epochs=0"])
            .args(["--nproc-per-node", &self.args.nproc_per_node.to_string()])
            .arg("--trial-record")
            .arg(&record)
            .stdin(Stdio::null());
        let output = command.output().map_err(|source| CliError::Io {
            action: "starting",
            path: self.program.clone(),
            source,
        })?;
        match output.status.success() {
            true => read(&record).map(Attempt::Fits),
            false => match ran_out_of_memory(&output) {
                Some(reason) => Ok(Attempt::TooLarge(reason)),
                None => Err(CliError::Trial { batch_size, reason: last_words(&output) }),
            },
        }
    }
}

fn read(path: &Path) -> Result<Trial, CliError> {
    let invalid = |error: serde_json::Error| std::io::Error::other(error);
    let record: Result<Record, _> =
        std::fs::read(path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(invalid));
    let Record { images_per_s, seconds_per_step, peak_memory_bytes } =
        record.map_err(|source| CliError::Io {
            action: "reading the record of a trial",
            path: path.to_path_buf(),
            source,
        })?;
    Ok(Trial { images_per_s, seconds_per_step, peak_memory_bytes: peak_memory_bytes as f64 })
}

/// What says that a run has failed for want of memory: the system's killer, the allocator, or a GPU.
fn ran_out_of_memory(output: &Output) -> Option<String> {
    const KILLED: i32 = 9;
    let said = String::from_utf8_lossy(&output.stderr);
    // A launcher ends with the code of the rank that failed first.
    let killed =
        output.status.signal() == Some(KILLED) || output.status.code() == Some(128 + KILLED);
    if killed {
        return Some("killed, as the system does when memory runs out".to_owned());
    }
    let words = ["memory allocation of", "out of memory", "OUT_OF_MEMORY", "OutOfMemory"];
    let line = said.lines().find(|line| words.iter().any(|words| line.contains(words)));
    line.map(|line| line.trim().to_owned())
}

fn last_words(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    if said.is_empty() { output.status.to_string() } else { said.to_owned() }
}

/// Notes when the steps of a run under trial end.
pub(crate) struct TrialRecorder {
    ends: Arc<Mutex<Vec<(Instant, u64)>>>,
}

impl TrialRecorder {
    pub(crate) fn new() -> Self {
        Self { ends: Arc::default() }
    }

    /// What follows the run.
    pub(crate) fn callback(&self) -> impl Callback + 'static {
        Clock(self.ends.clone())
    }

    /// Writes down what the run has shown.
    pub(crate) fn write<M>(&self, report: &FitReport<M>, path: &Path) -> Result<(), CliError> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let [(first, _), rest @ ..] = ends.as_slice() else {
            return Err(TrainError::NoSteps { samples: 0 }.into());
        };
        let seconds = rest.last().map_or(0.0, |(last, _)| (*last - *first).as_secs_f64());
        let samples: u64 = rest.iter().map(|(_, samples)| samples).sum();
        let record = Record {
            images_per_s: samples as f64 / seconds.max(1e-9),
            seconds_per_step: seconds / rest.len().max(1) as f64,
            // Ranks that are threads have the memory of one process.
            peak_memory_bytes: match rank_of_this_process() {
                Some(_) => report.ranks.iter().map(|rank| rank.peak_memory_bytes).sum(),
                None => report.ranks.iter().map(|rank| rank.peak_memory_bytes).max().unwrap_or(0),
            },
        };
        let text = serde_json::to_vec(&record).map_err(std::io::Error::other);
        text.and_then(|text| std::fs::write(path, text)).map_err(|source| CliError::Io {
            action: "writing",
            path: path.to_path_buf(),
            source,
        })
    }
}

struct Clock(Arc<Mutex<Vec<(Instant, u64)>>>);

impl Callback for Clock {
    fn name(&self) -> &str {
        "trial"
    }

    fn on_step_end(&mut self, end: &StepEnd) -> Result<(), TrainError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), end.samples));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;

    fn output(raw: i32, stderr: &str) -> Output {
        Output { status: ExitStatus::from_raw(raw), stdout: Vec::new(), stderr: stderr.into() }
    }

    #[test]
    fn a_want_of_memory_is_told_from_other_failures() {
        for (raw, stderr) in [
            (9, ""),
            (137 << 8, ""),
            (6, "memory allocation of 123456 bytes failed"),
            (1 << 8, "error: CUDA_ERROR_OUT_OF_MEMORY"),
        ] {
            assert!(ran_out_of_memory(&output(raw, stderr)).is_some(), "{raw} {stderr}");
        }
        let other = output(1 << 8, "error: data.path: no such folder\n");
        assert_eq!(ran_out_of_memory(&other), None);
        assert_eq!(last_words(&other), "error: data.path: no such folder");
    }
}
