use crate::{Callback, EpochEnd, FitStart, Metrics, Report, StepEnd, TrainError};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::time::{Duration, Instant};

/// Shows a run's progress on standard error, on rank 0 only: a bar on a terminal, else a line every
/// few seconds, or events of the log.
pub struct ProgressPrinter {
    interval: Duration,
    form: Form,
    /// Rank 0's; a bar only on a terminal.
    output: Option<Output>,
    epochs: u64,
    total_steps: u64,
    last_line: Instant,
    latest: Metrics,
}

enum Output {
    Bar(ProgressBar),
    Lines,
    Log,
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Shown,
    Logged,
    Silent,
}

/// Target of events that say what is shown in another form: for a log that is kept, and not for a terminal.
pub const KEPT: &str = "kept";

impl ProgressPrinter {
    /// Makes a printer that writes a line every `interval` when there is no terminal.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            form: Form::Shown,
            output: None,
            epochs: 0,
            total_steps: 0,
            last_line: Instant::now(),
            latest: Metrics::default(),
        }
    }

    /// Makes it log events, every `interval` and at validations, in place of anything else.
    #[must_use]
    pub fn with_log(self) -> Self {
        Self { form: Form::Logged, ..self }
    }

    /// Makes it show nothing: what it would say at validations is an event of the log with target [`KEPT`],
    /// as it is beside a bar or lines.
    #[must_use]
    pub fn silent(self) -> Self {
        Self { form: Form::Silent, ..self }
    }

    fn message(&self, epoch: u64, images_per_second: f64) -> String {
        let mut text = format!("epoch {}/{}", epoch + 1, self.epochs.max(epoch + 1));
        for value in self.latest.0.iter().filter(|value| value.count > 0.0) {
            text.push_str(&format!("  {} {:.4}", value.name, value.mean()));
        }
        text.push_str(&format!("  {images_per_second:.0} images/s"));
        text
    }

    fn line(&mut self, text: &str) {
        match &self.output {
            Some(Output::Bar(bar)) => bar.println(text),
            // A closed standard error must not end the run.
            Some(Output::Lines) => drop(writeln!(std::io::stderr(), "{text}")),
            Some(Output::Log | Output::Silent) | None => {}
        }
        self.last_line = Instant::now();
    }
}

impl Callback for ProgressPrinter {
    fn name(&self) -> &str {
        "progress"
    }

    fn on_fit_start(&mut self, fit: &FitStart) -> Result<(), TrainError> {
        (self.epochs, self.total_steps) = (fit.epochs, fit.total_steps);
        if fit.rank != 0 {
            return Ok(());
        }
        let target = ProgressDrawTarget::stderr();
        self.output = Some(if self.form == Form::Logged {
            Output::Log
        } else if self.form == Form::Silent {
            Output::Silent
        } else if target.is_hidden() {
            Output::Lines
        } else {
            let bar = ProgressBar::with_draw_target(Some(fit.total_steps), target);
            let template = "{msg} [{bar:24}] {pos}/{len} steps, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_position(fit.first_step);
            Output::Bar(bar)
        });
        Ok(())
    }

    fn on_step_end(&mut self, end: &StepEnd) -> Result<(), TrainError> {
        let Some(output) = &self.output else { return Ok(()) };
        match output {
            Output::Bar(bar) => bar.set_position(end.step),
            Output::Lines if self.last_line.elapsed() >= self.interval => {
                let message = self.message(end.epoch, end.samples_per_second);
                self.line(&format!("{message}  step {}/{}", end.step, self.total_steps));
            }
            Output::Log if self.last_line.elapsed() >= self.interval => {
                self.last_line = Instant::now();
                tracing::info!(
                    epoch = end.epoch,
                    step = end.step,
                    total_steps = self.total_steps,
                    images_per_s = end.samples_per_second,
                    loss = self.latest.loss(),
                    accuracy = self.latest.mean("accuracy"),
                    "training"
                );
            }
            Output::Lines | Output::Log | Output::Silent => {}
        }
        Ok(())
    }

    fn on_report(&mut self, report: &Report) -> Result<(), TrainError> {
        self.latest = report.metrics.clone();
        if let Some(Output::Bar(bar)) = &self.output {
            bar.set_message(self.message(report.epoch, report.samples_per_second));
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, end: &EpochEnd) -> Result<(), TrainError> {
        self.latest = end.train.clone();
        if let Some(Output::Bar(bar)) = &self.output {
            bar.set_message(self.message(end.epoch, end.samples_per_second));
            bar.set_position(end.step);
        }
        Ok(())
    }

    fn on_validation_end(
        &mut self,
        epoch: u64,
        step: u64,
        metrics: &Metrics,
    ) -> Result<(), TrainError> {
        match self.output {
            None => return Ok(()),
            Some(Output::Log) => {
                let (loss, accuracy) = (metrics.loss(), metrics.mean("accuracy"));
                tracing::info!(epoch, step, loss, accuracy, "validated");
            }
            Some(_) => {}
        }
        let mut text = format!("epoch {}/{}  step {step}", epoch + 1, self.epochs.max(epoch + 1));
        for value in &self.latest.0 {
            text.push_str(&format!("  train {} {:.4}", value.name, value.mean()));
        }
        for value in &metrics.0 {
            text.push_str(&format!("  valid {} {:.4}", value.name, value.mean()));
        }
        if !matches!(self.output, Some(Output::Log)) {
            tracing::info!(target: KEPT, "{text}");
        }
        self.line(&text);
        Ok(())
    }

    fn on_fit_end(&mut self) -> Result<(), TrainError> {
        if let Some(Output::Bar(bar)) = self.output.take() {
            bar.finish_and_clear();
        }
        Ok(())
    }

    fn on_exception(&mut self, _error: &TrainError) {
        if let Some(Output::Bar(bar)) = self.output.take() {
            bar.abandon();
        }
    }
}
