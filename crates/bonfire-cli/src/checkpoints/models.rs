//! Models of checkpoints.

use super::args::{AverageArgs, ExportArgs};
use crate::CliError;
use crate::exit::Outcome;
use crate::model_folder::{DESCRIPTION, ModelDescription};
use crate::voice::say;
use bonfire_tensor::state::HostTensor;
use bonfire_trainer::checkpoint::{list, load, mean_of_models, write_safetensors};
use bonfire_trainer::{RunFolder, TrainError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Makes a model folder of a checkpoint.
pub(super) fn export(args: &ExportArgs) -> Result<Outcome, CliError> {
    let description = description(args.model.as_deref(), &args.path)?;
    let checkpoint = load(&args.path).map_err(TrainError::from)?;
    let step = checkpoint.manifest.step;
    let tensors = match &args.variant {
        None => checkpoint.into_model(),
        Some(name) => {
            let known = checkpoint.averages().into_iter().collect::<Vec<_>>().join(", ");
            checkpoint.into_average(name)?.ok_or_else(|| {
                let known = if known.is_empty() { "none".to_string() } else { known };
                let problem = format!("the checkpoint has no average \"{name}\"; it has {known}");
                CliError::ModelFile { path: args.path.clone(), problem }
            })?
        }
    };
    write(&args.out, &description, &tensors)?;
    say(format_args!("model of step {step}: {}", args.out.display()));
    Ok(Outcome::Done)
}

/// Makes a model folder of the mean of several.
pub(super) fn average(args: &AverageArgs) -> Result<Outcome, CliError> {
    let mut found = Vec::new();
    for path in &args.paths {
        for entry in list(path).map_err(TrainError::from)? {
            let manifest = entry.manifest.map_err(TrainError::from)?;
            found.push((manifest.step, entry.path));
        }
    }
    found.sort();
    let last = args.last.map_or(found.len(), |last| last.get().min(found.len()));
    let taken: Vec<PathBuf> =
        found.split_off(found.len() - last).into_iter().map(|(_, path)| path).collect();
    let newest = taken.last().map_or(Path::new("."), PathBuf::as_path);
    let description = description(args.model.as_deref(), newest)?;
    write(&args.out, &description, &mean_of_models(&taken)?)?;
    say(format_args!("mean of {} checkpoints: {}", taken.len(), args.out.display()));
    Ok(Outcome::Done)
}

/// The description of the model at a path in a run.
fn description(given: Option<&Path>, path: &Path) -> Result<String, CliError> {
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let beside = || canonical.ancestors().take(3).map(|folder| folder.join(DESCRIPTION));
    let found = given.map(Path::to_path_buf).or_else(|| beside().find(|file| file.is_file()));
    let Some(file) = found else {
        let problem =
            format!("there is no {DESCRIPTION} in the run that it lies in; name one with --model");
        return Err(CliError::ModelFile { path: path.to_path_buf(), problem });
    };
    ModelDescription::load(&file)?.to_toml()
}

fn write(
    out: &Path,
    description: &str,
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<(), CliError> {
    if std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) || out.is_file() {
        let problem = "there is something already; give a new folder to --out".to_string();
        return Err(CliError::ModelFile { path: out.to_path_buf(), problem });
    }
    let folder = RunFolder::create(out)?;
    write_safetensors(&out.join("model.safetensors"), tensors).map_err(TrainError::from)?;
    Ok(folder.write_description(description)?)
}
