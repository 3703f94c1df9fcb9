use crate::{Callback, Metrics, TrainError};
use bonfire_report::html::{self, Standing};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Writes `report.html` into the run's folder after validations and at the end, from the files that are there.
/// Once there is a summary, [`RunFolder::write_report`](crate::RunFolder::write_report) writes the last one.
///
/// While the run goes on, at most a hundredth of the time goes into it. A page that cannot be written is
/// only told: it says nothing that the other files do not.
pub struct ReportPage {
    folder: PathBuf,
    /// When the next page may be written.
    next: Instant,
}

/// Share of the time that pages may take while the run goes on, as its inverse.
const SPARED: u32 = 100;
/// Least time from one page to the next.
const LEAST: Duration = Duration::from_secs(10);

impl ReportPage {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, next: Instant::now() }
    }

    fn write(&mut self, standing: Standing) {
        let start = Instant::now();
        if let Err(error) = html::write(&self.folder, standing) {
            tracing::warn!("{} cannot be written: {error}", html::FILE_NAME);
        }
        self.next = Instant::now() + LEAST.max(SPARED * start.elapsed());
    }
}

impl Callback for ReportPage {
    fn name(&self) -> &str {
        "report_page"
    }

    fn on_validation_end(
        &mut self,
        _epoch: u64,
        _step: u64,
        _metrics: &Metrics,
    ) -> Result<(), TrainError> {
        if Instant::now() >= self.next {
            self.write(Standing::Running);
        }
        Ok(())
    }

    fn on_fit_end(&mut self) -> Result<(), TrainError> {
        self.write(Standing::Running);
        Ok(())
    }

    fn on_exception(&mut self, error: &TrainError) {
        self.write(Standing::Failed(error.to_string()));
    }
}
