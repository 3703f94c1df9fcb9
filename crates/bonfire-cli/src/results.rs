//! What rank 0 makes of a run that has ended.

use crate::CliError;
use crate::process::launch_time;
use crate::report::print_table;
use crate::voice::say;
use bonfire_trainer::config::Plan;
use bonfire_trainer::run_folder::{Baseline, SkippedFiles, Summary};
use bonfire_trainer::{FitReport, Learnable, Metrics, RunFolder};

/// A run that has ended.
pub(crate) struct Results<'a, M> {
    pub(crate) report: &'a FitReport<M>,
    pub(crate) plan: &'a Plan,
    pub(crate) skipped_files: SkippedFiles,
    pub(crate) baseline: Option<Baseline>,
    pub(crate) class_names: Vec<String>,
}

impl<M: Learnable> Results<'_, M> {
    /// Writes model, summary and report, and prints the table.
    pub(crate) fn write(&self, folder: &RunFolder, description: &str) -> Result<(), CliError> {
        let report = self.report;
        folder.write_model(&report.model, description)?;
        for variant in &report.variants {
            folder.write_variant(&report.model, variant)?;
        }
        if report.first_step_at.is_none() && folder.has_summary() {
            say(format_args!("the run has come to its end before: nothing was trained"));
            return Ok(());
        }
        let summary = self.summary();
        folder.write_summary(&summary)?;
        if self.plan.log.report
            && let Err(error) = folder.write_report()
        {
            // It says nothing that the other files do not.
            tracing::warn!("{error}");
        }
        print_table(&summary, folder.path())?;
        let findings = report.verdict.iter().flat_map(|verdict| &verdict.findings);
        findings.for_each(|finding| say(&finding.text));
        Ok(())
    }

    fn summary(&self) -> Summary {
        let first = self.report.first_step_at;
        let seconds = first.and_then(|first| first.duration_since(launch_time()).ok());
        let mut summary = Summary::new(self.report, seconds.map(|seconds| seconds.as_secs_f64()));
        summary.skipped_files = self.skipped_files;
        if summary.confusion_matrix.is_some() {
            summary.class_names = self.class_names.clone();
        }
        match &self.baseline {
            Some(baseline) => summary.against(baseline),
            None => summary,
        }
    }

    /// Tells of a run that only tried, and has no folder.
    pub(crate) fn tell_of_try(&self) {
        let Some(steps) = self.plan.train.fast_dev_run else { return };
        let loss = self.report.valid.as_ref().and_then(Metrics::loss).unwrap_or(f64::NAN);
        say(format_args!(
            "fast_dev_run: {steps} step(s) and a validation went through (loss {loss:.4}); nothing was \
             written"
        ));
    }
}
