use crate::config::OnError;
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
    on_error: OnError,
    /// Words that are shown beside the curves, by name.
    texts: Vec<(String, String)>,
}

/// Time for which events may stay in memory.
const PATIENCE: Duration = Duration::from_secs(5);

impl TensorBoard {
    /// Writes into a folder, which is made when the run begins.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            writer: None,
            flushed: Instant::now(),
            on_error: OnError::Stop,
            texts: Vec::new(),
        }
    }

    /// Sets whether a run goes on, without further events, when they cannot be written.
    #[must_use]
    pub fn with_on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }

    /// Shows words beside the curves, as they are.
    #[must_use]
    pub fn with_text(mut self, name: &str, text: &str) -> Self {
        let lines = text.lines().map(|line| format!("    {line}\n"));
        self.texts.push((name.to_owned(), lines.collect()));
        self
    }

    /// Lets the run go on without further events, if it may.
    fn survive(&mut self, written: std::io::Result<()>) -> Result<(), TrainError> {
        match written.map_err(TrainError::io("writing events into", &self.folder)) {
            Err(error) if self.on_error == OnError::Continue => {
                tracing::error!("{error}; the run goes on without further events");
                self.writer = None;
                Ok(())
            }
            written => written,
        }
    }

    fn create(&self, first_step: u64) -> std::io::Result<EventWriter> {
        std::fs::create_dir_all(&self.folder)?;
        // Whatever an earlier try has left beyond the step from which this one goes on is forgotten.
        let continues = std::fs::read_dir(&self.folder)?.next().is_some();
        let mut writer = EventWriter::create(&self.folder, continues.then_some(first_step + 1))?;
        for (name, text) in &self.texts {
            writer.text(name, first_step + 1, SystemTime::now(), text)?;
        }
        Ok(writer)
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
        self.survive(result)
    }
}

impl Callback for TensorBoard {
    fn name(&self) -> &str {
        "tensorboard"
    }

    fn on_fit_start(&mut self, fit: &FitStart) -> Result<(), TrainError> {
        let made = self.create(fit.first_step).map(|writer| self.writer = Some(writer));
        self.survive(made)
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
        // Scalars of a step bear the number that it has when it is done.
        let step = histograms.step + 1;
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
        let written = write();
        self.survive(written)
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
