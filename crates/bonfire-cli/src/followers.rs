//! What follows a run, as its recipe and the command line ask.

use crate::CliError;
use crate::voice::{LogFormat, VoiceArgs, voice};
use crate::worker::Rank;
use bonfire_trainer::config::Plan;
use bonfire_trainer::{ProgressPrinter, RunFolder, TrainError, Trainer};

/// Adds the callbacks of a rank; `folder` is rank 0's.
pub(crate) fn add(
    trainer: Trainer,
    plan: &Plan,
    rank: &Rank<'_>,
    folder: Option<&RunFolder>,
    description: &str,
) -> Result<Trainer, CliError> {
    let progress = ProgressPrinter::new(plan.log.interval);
    let mut trainer = match voice() {
        VoiceArgs { quiet: true, .. } => trainer.with_callback(progress.silent()),
        VoiceArgs { log_format: LogFormat::Json, .. } => trainer.with_callback(progress.with_log()),
        _ => trainer.with_callback(progress),
    };
    if let Some(folder) = folder {
        trainer = trainer
            .with_callback(folder.run_files(plan.to_toml()?, description.to_owned()))
            .with_callback(folder.metrics_file(plan.checkpoint.on_error)?)
            .with_callback(folder.metrics_lines(plan.checkpoint.on_error)?);
        if plan.log.tensorboard {
            let events = folder.tensorboard(plan.checkpoint.on_error);
            trainer = trainer.with_callback(events.with_text("recipe", &plan.to_toml()?));
        }
        if plan.log.report {
            trainer = trainer.with_callback(folder.report_page());
        }
    }
    if plan.log.samples {
        // Ranks on other machines write into a folder of the same name there.
        let place = rank.args.out.as_ref().map(RunFolder::create).transpose()?;
        let place = folder.or(place.as_ref());
        let number = rank.group.rank();
        if let Some(log) = place.map(|folder| folder.sample_log(number)).transpose()? {
            trainer = trainer.with_callback(log);
        }
    }
    if let Some(average) = &plan.average {
        trainer = trainer.with_callback(average.callback().map_err(TrainError::from)?);
    }
    if let Some(stopping) = &plan.early_stopping {
        trainer = trainer.with_callback(stopping.callback());
    }
    Ok(trainer)
}
