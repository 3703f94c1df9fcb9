use crate::metrics_file::keep_lines;
use crate::whole_file::appending;
use crate::{BatchStart, Callback, FitStart, TrainError};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// Writes down which samples a rank has had in each step: `epoch,step,indices`, a line a micro-batch, the
/// step counted from 1, the indices in the data set separated by spaces.
///
/// A line is with the system before its samples have any effect, so that of a run that was killed it is
/// known what its checkpoints have seen. A resumed run removes the lines of steps that it takes again.
pub struct SampleLog {
    path: PathBuf,
    file: File,
}

impl SampleLog {
    pub(crate) fn open(path: PathBuf) -> Result<Self, TrainError> {
        let file = appending(&path)?;
        Ok(Self { path, file })
    }
}

impl Callback for SampleLog {
    fn name(&self) -> &str {
        "samples"
    }

    fn on_fit_start(&mut self, fit: &FitStart) -> Result<(), TrainError> {
        let step = |line: &str| line.split(',').nth(1).and_then(|step| step.parse::<u64>().ok());
        keep_lines(&self.path, |line| step(line).is_some_and(|step| step <= fit.first_step))?;
        // The one that was open may have been replaced.
        self.file = appending(&self.path)?;
        Ok(())
    }

    fn on_batch_start(&mut self, start: &BatchStart<'_>) -> Result<(), TrainError> {
        let indices: Vec<String> = start.indices.iter().map(usize::to_string).collect();
        let line = format!("{},{},{}\n", start.epoch, start.step + 1, indices.join(" "));
        self.file.write_all(line.as_bytes()).map_err(TrainError::io("writing", &self.path))
    }
}
