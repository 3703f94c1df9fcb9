use crate::config::OnError;
use crate::whole_file::{appending, write_whole};
use crate::{Callback, FitStart, Metrics, Report, TrainError};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Appends training reports and validations to a CSV file.
///
/// Columns: `phase` (`train` or `valid`), `epoch` and `step` from 0 and 1, `learning_rate`,
/// `images_per_s`, `loss`, then the model's metrics.
pub struct MetricsFile {
    path: PathBuf,
    writer: csv::Writer<File>,
    /// Metric columns, once known.
    names: Option<Vec<String>>,
    learning_rate: f64,
    images_per_s: f64,
    /// Step of the last validation that has a row.
    validated: Option<u64>,
    on_error: OnError,
}

impl MetricsFile {
    pub(crate) fn open(path: PathBuf, on_error: OnError) -> Result<Self, TrainError> {
        let earlier = std::fs::read_to_string(&path).unwrap_or_default();
        let names = earlier
            .lines()
            .next()
            .map(|head| head.split(',').skip(5).map(str::to_string).collect());
        let writer = open_rows(&path)?;
        let (learning_rate, images_per_s) = (0.0, 0.0);
        Ok(Self { path, writer, names, learning_rate, images_per_s, validated: None, on_error })
    }

    /// Lets the run go on without a row that could not be written, if it may.
    fn survive(&self, row: Result<(), TrainError>) -> Result<(), TrainError> {
        match row {
            Err(error) if self.on_error == OnError::Continue => {
                tracing::error!("{error}; the run goes on without these figures");
                Ok(())
            }
            row => row,
        }
    }

    fn row(
        &mut self,
        phase: &str,
        epoch: u64,
        step: u64,
        metrics: &Metrics,
    ) -> Result<(), TrainError> {
        let names = self.columns(metrics)?;
        let mut row = vec![
            phase.to_string(),
            epoch.to_string(),
            step.to_string(),
            self.learning_rate.to_string(),
            format!("{:.1}", self.images_per_s),
        ];
        row.extend(
            names.iter().map(|name| metrics.mean(name).map_or(String::new(), |x| x.to_string())),
        );
        self.write(row)
    }

    /// The metric columns, after adding those that `metrics` has first.
    fn columns(&mut self, metrics: &Metrics) -> Result<Vec<String>, TrainError> {
        let mut names = self.names.clone().unwrap_or_default();
        let known = names.len();
        for value in &metrics.0 {
            if !names.contains(&value.name) {
                names.push(value.name.clone());
            }
        }
        if known == 0 && self.names.is_none() {
            self.write(head(&names))?;
        } else if known < names.len() {
            self.widen(&names, names.len() - known)?;
        }
        Ok(self.names.insert(names).clone())
    }

    /// Writes the file anew with more columns, which the rows there are leave empty.
    fn widen(&mut self, names: &[String], more: usize) -> Result<(), TrainError> {
        let read = std::fs::read_to_string(&self.path);
        let text = read.map_err(TrainError::io("reading", &self.path))?;
        let rows = text.lines().skip(1).map(|line| format!("{line}{}\n", ",".repeat(more)));
        let text = format!("{}\n{}", head(names).join(","), rows.collect::<String>());
        write_whole(&self.path, text.as_bytes()).map_err(TrainError::io("writing", &self.path))?;
        self.writer = open_rows(&self.path)?;
        Ok(())
    }

    fn write(&mut self, row: Vec<String>) -> Result<(), TrainError> {
        let io = |error: csv::Error| std::io::Error::other(error.to_string());
        self.writer
            .write_record(row)
            .map_err(io)
            .and_then(|()| self.writer.flush())
            .map_err(TrainError::io("writing", &self.path))
    }
}

fn head(names: &[String]) -> Vec<String> {
    let fixed = ["phase", "epoch", "step", "learning_rate", "images_per_s"];
    fixed.into_iter().map(str::to_string).chain(names.iter().cloned()).collect()
}

impl Callback for MetricsFile {
    fn name(&self) -> &str {
        "metrics"
    }

    // A resumed run may continue a file that already goes beyond its checkpoint.
    fn on_fit_start(&mut self, fit: &FitStart) -> Result<(), TrainError> {
        let step = |line: &str| line.split(',').nth(2).and_then(|step| step.parse::<u64>().ok());
        keep_lines(&self.path, |line| step(line).is_none_or(|step| step <= fit.first_step))?;
        self.writer = open_rows(&self.path)?;
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let valid = text.lines().filter(|line| line.starts_with("valid"));
        self.validated = valid.filter_map(step).max();
        Ok(())
    }

    fn on_report(&mut self, report: &Report) -> Result<(), TrainError> {
        (self.learning_rate, self.images_per_s) = (report.learning_rate, report.samples_per_second);
        if report.metrics.loss().is_none() {
            return Ok(());
        }
        let row = self.row("train", report.epoch, report.step, &report.metrics);
        self.survive(row)
    }

    fn on_validation_end(
        &mut self,
        epoch: u64,
        step: u64,
        metrics: &Metrics,
    ) -> Result<(), TrainError> {
        // A run that has ended before is validated again when it is started again.
        if self.validated == Some(step) {
            return Ok(());
        }
        let row = self.row("valid", epoch, step, metrics);
        self.survive(row)
    }
}

/// Removes the lines of a file that are not to be kept, and what a killed writer has left of one.
pub(crate) fn keep_lines(path: &Path, keep: impl Fn(&str) -> bool) -> Result<(), TrainError> {
    let text = std::fs::read_to_string(path).map_err(TrainError::io("reading", path))?;
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let kept: String = lines.filter(|line| keep(line.trim_end())).collect();
    if kept.len() < text.len() {
        write_whole(path, kept.as_bytes()).map_err(TrainError::io("writing", path))?;
    }
    Ok(())
}

/// Opens a file for rows behind those there are.
fn open_rows(path: &Path) -> Result<csv::Writer<File>, TrainError> {
    // Figures may be added while the run goes on.
    Ok(csv::WriterBuilder::new().flexible(true).from_writer(appending(path)?))
}
