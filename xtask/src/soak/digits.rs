//! `cargo xtask soak digits`: a recipe, trained again and again.

use crate::bonfire::{Summary, Train};
use crate::cargo::{build_release, root};
use crate::{Result, record};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Accuracy on the test images that each run has to reach.
const DIGITS_ACCURACY: f64 = 0.97;
/// A step in mid-epoch: an epoch has 30.
const DIGITS_RESUME_STEP: &str = "100";

pub(crate) fn run() -> Result<()> {
    let program = build_release()?.bonfire;
    let mut soak = Soak::new(&program, "configs/digits.toml")?;
    for ranks in [1, 2, 3] {
        let run = soak.train(ranks, "uninterrupted", &[], None)?;
        soak.expect(run.number("valid_accuracy")? >= DIGITS_ACCURACY, "accuracy below 0.97");
        let again = soak.train(ranks, "once more", &[], None)?;
        soak.expect(run.parameters()? == again.parameters()?, "other parameters than before");

        let every = format!("checkpoint.every_n_steps={DIGITS_RESUME_STEP}");
        let keep = [
            "checkpoint.every_n_epochs=0",
            &every,
            "checkpoint.keep_last=100",
            "checkpoint.asynchronous=false",
        ];
        let kept = soak.train(ranks, "with checkpoints in mid-epoch", &keep, None)?;
        soak.expect(run.parameters()? == kept.parameters()?, "checkpoints changed the parameters");
        let checkpoint = soak.last_out().join(format!("checkpoints/step-{DIGITS_RESUME_STEP:0>8}"));
        let resumed = soak.train(ranks, "resumed from step 100", &[], Some(checkpoint))?;
        soak.expect(run.parameters()? == resumed.parameters()?, "resumed is not uninterrupted");
    }
    soak.finish("soak-digits")
}

/// Runs of one recipe and what came of them.
struct Soak<'a> {
    program: &'a Path,
    config: PathBuf,
    folder: tempfile::TempDir,
    runs: usize,
    table: String,
    failures: usize,
}

impl<'a> Soak<'a> {
    fn new(program: &'a Path, config: &str) -> Result<Self> {
        let head = "| ranks | run | test accuracy | steps | parameters xxh3 | images/s |\n\
                    |---|---|---|---|---|---|\n";
        Ok(Self {
            program,
            config: root().join(config),
            folder: tempfile::tempdir()?,
            runs: 0,
            table: head.to_string(),
            failures: 0,
        })
    }

    fn train(
        &mut self,
        ranks: usize,
        what: &str,
        overrides: &[&str],
        resume: Option<PathBuf>,
    ) -> Result<Summary> {
        self.runs += 1;
        let (program, config, out) = (self.program, &self.config, self.last_out());
        let summary = Train { program, config, ranks, overrides, resume, out }.run()?;
        let row = format!(
            "| {ranks} | {what} | {:.4} | {} | {} | {:.0} |",
            summary.number("valid_accuracy")?,
            summary.number("steps")?,
            summary.parameters()?,
            summary.number("images_per_s")?,
        );
        println!("{row}");
        writeln!(self.table, "{row}")?;
        Ok(summary)
    }

    /// Folder of the run that was started last.
    fn last_out(&self) -> PathBuf {
        self.folder.path().join(format!("run-{}", self.runs))
    }

    /// Notes a failure of the last run unless `holds`.
    fn expect(&mut self, holds: bool, failure: &str) {
        if !holds {
            self.failures += 1;
            println!("FAILED: {failure}");
            self.table.push_str(&format!("| | FAILED: {failure} | | | | |\n"));
        }
    }

    fn finish(self, name: &str) -> Result<()> {
        record::write(name, &self.table)?;
        match self.failures {
            0 => Ok(()),
            failures => Err(format!("{failures} of the expectations failed").into()),
        }
    }
}
