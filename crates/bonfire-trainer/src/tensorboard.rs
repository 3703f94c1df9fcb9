use crate::{Callback, FitStart, Histograms, Metrics, Report, TrainError};
use bonfire_report::tensorboard::EventWriter;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// Writes event files for TensorBoard: `train/…` and `valid/…` figures, the learning rate, and what every
/// rank did.
///
/// A resumed run begins a file of its own, in which TensorBoard is told to forget the steps that are taken
/// again.
pub struct TensorBoard {
    folder: PathBuf,
    /// From the start of the run on.
    writer: Option<EventWriter>,
    flushed: Instant,
}

/// Time for which events may stay in memory.
const PATIENCE: Duration = Duration::from_secs(5);

impl TensorBoard {
    /// Writes into a folder, which is made when the run begins.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), writer: None, flushed: Instant::now() }
    }

    fn write(
        &mut self,
        step: u64,
        scalars: &[(String, f64)],
        at_once: bool,
    ) -> Result<(), TrainError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let now = SystemTime::now();
        let mut result = Ok(());
        for (tag, value) in scalars {
            result = result.and_then(|()| writer.scalar(tag, step, now, *value));
        }
        if at_once || self.flushed.elapsed() > PATIENCE {
            result = result.and_then(|()| writer.flush());
            self.flushed = Instant::now();
        }
        result.map_err(TrainError::io("writing events into", &self.folder))
    }
}

impl Callback for TensorBoard {
    fn name(&self) -> &str {
        "tensorboard"
    }

    fn on_fit_start(&mut self, fit: &FitStart) -> Result<(), TrainError> {
        let purge = (fit.first_step > 0).then_some(fit.first_step + 1);
        let made = std::fs::create_dir_all(&self.folder)
            .and_then(|()| EventWriter::create(&self.folder, purge));
        self.writer = Some(made.map_err(TrainError::io("creating", &self.folder))?);
        Ok(())
    }

    fn on_report(&mut self, report: &Report) -> Result<(), TrainError> {
        let mut scalars = figures("train", &report.metrics);
        scalars.push(("learning_rate".into(), report.learning_rate));
        scalars.push(("images_per_s/all".into(), report.interval_samples_per_second()));
        for (rank, figures) in report.ranks.iter().enumerate() {
            let share = figures.share;
            scalars.push((format!("images_per_s/rank {rank}"), figures.samples_per_second()));
            scalars.push((format!("cpu_cores/rank {rank}"), figures.cpu_cores));
            if let Some(share) = figures.device_utilization {
                scalars.push((format!("device_utilization/rank {rank}"), share));
            }
            for (part, share) in [
                ("data", share.data),
                ("forward", share.forward),
                ("backward", share.backward),
                ("comm_wait", share.comm_wait),
                ("optimizer", share.optimizer),
            ] {
                scalars.push((format!("time_share_{part}/rank {rank}"), share));
            }
        }
        self.write(report.step, &scalars, false)
    }

    fn on_histograms(&mut self, histograms: &Histograms) -> Result<(), TrainError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let now = SystemTime::now();
        let step = histograms.step;
        let mut write = || {
            for (group, parts) in
                [("parameters", &histograms.parameters), ("gradients", &histograms.gradients)]
            {
                for (path, histogram) in parts {
                    writer.histogram(&format!("{group}/{path}"), step, now, histogram)?;
                }
            }
            Ok(())
        };
        write().map_err(TrainError::io("writing events into", &self.folder))
    }

    fn on_validation_end(
        &mut self,
        _epoch: u64,
        step: u64,
        metrics: &Metrics,
    ) -> Result<(), TrainError> {
        self.write(step, &figures("valid", metrics), true)
    }

    fn on_fit_end(&mut self) -> Result<(), TrainError> {
        self.write(0, &[], true)
    }

    fn on_exception(&mut self, _error: &TrainError) {
        // The run has failed for a better reason.
        let _ = self.write(0, &[], true);
    }
}

fn figures(phase: &str, metrics: &Metrics) -> Vec<(String, f64)> {
    let figures = metrics.0.iter().filter(|value| value.count > 0.0);
    figures.map(|value| (format!("{phase}/{}", value.name), value.mean())).collect()
}
