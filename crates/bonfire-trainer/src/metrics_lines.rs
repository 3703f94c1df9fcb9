use crate::config::OnError;
use crate::metrics_file::keep_lines;
use crate::whole_file::{append_whole, appending};
use crate::{Callback, FitStart, Metrics, RankFigures, Report, TrainError};
use bonfire_report::history::{Phase, RankRow, Row};
use std::fs::File;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Appends training reports and validations to a file of JSON, a [`Row`] a line, with what every rank did.
///
/// A resumed run removes the rows of steps that it takes again.
pub struct MetricsLines {
    path: PathBuf,
    file: File,
    /// Step of the last validation that has a row.
    validated: Option<u64>,
    on_error: OnError,
}

impl MetricsLines {
    pub(crate) fn open(path: PathBuf, on_error: OnError) -> Result<Self, TrainError> {
        let file = appending(&path)?;
        Ok(Self { path, file, validated: None, on_error })
    }

    /// Writes a row, or lets the run go on without it if it may.
    fn write(&mut self, row: &Row) -> Result<(), TrainError> {
        let line = row.to_line();
        let written = line.and_then(|line| append_whole(&mut self.file, line.as_bytes()));
        match written.map_err(TrainError::io("writing", &self.path)) {
            Err(error) if self.on_error == OnError::Continue => {
                tracing::error!("{error}; the run goes on without these figures");
                Ok(())
            }
            written => written,
        }
    }
}

impl Callback for MetricsLines {
    fn name(&self) -> &str {
        "metrics_lines"
    }

    fn on_fit_start(&mut self, fit: &FitStart) -> Result<(), TrainError> {
        let row = |line: &str| serde_json::from_str::<Row>(line).ok();
        keep_lines(&self.path, |line| row(line).is_some_and(|row| row.step <= fit.first_step))?;
        // The one that was open may have been replaced.
        self.file = appending(&self.path)?;
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let valid = text.lines().filter_map(row).filter(|row| row.phase == Phase::Valid);
        self.validated = valid.map(|row| row.step).max();
        Ok(())
    }

    fn on_report(&mut self, report: &Report) -> Result<(), TrainError> {
        let ranks = report.ranks.iter().enumerate().map(|(rank, figures)| rank_row(rank, figures));
        self.write(&Row {
            learning_rate: Some(report.learning_rate),
            images_per_s: Some(report.interval_samples_per_second()),
            ranks: ranks.collect(),
            ..row(Phase::Train, report.epoch, report.step, &report.metrics)
        })
    }

    fn on_validation_end(
        &mut self,
        epoch: u64,
        step: u64,
        metrics: &Metrics,
    ) -> Result<(), TrainError> {
        // A run that has ended before is validated again when it is started again.
        match self.validated == Some(step) {
            true => Ok(()),
            false => self.write(&row(Phase::Valid, epoch, step, metrics)),
        }
    }
}

fn row(phase: Phase, epoch: u64, step: u64, metrics: &Metrics) -> Row {
    let figures = metrics.0.iter().filter(|value| value.count > 0.0);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Row {
        phase,
        epoch,
        step,
        time_s: since_1970.as_secs_f64(),
        learning_rate: None,
        images_per_s: None,
        figures: figures.map(|value| (value.name.clone(), value.mean())).collect(),
        ranks: Vec::new(),
    }
}

fn rank_row(rank: usize, figures: &RankFigures) -> RankRow {
    let share = figures.share;
    RankRow {
        rank,
        images_per_s: figures.samples_per_second(),
        busy_images_per_s: figures.busy_samples_per_second(),
        data: share.data,
        forward: share.forward,
        backward: share.backward,
        comm_wait: share.comm_wait,
        optimizer: share.optimizer,
        cpu_cores: figures.cpu_cores,
        device_utilization: figures.device_utilization,
        peak_memory_bytes: figures.peak_memory_bytes,
    }
}
