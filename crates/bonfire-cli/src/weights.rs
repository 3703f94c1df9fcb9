//! `bonfire weights`: weights of PyTorch into a model folder, and out of one.

use crate::CliError;
use crate::args::{ExportArgs, ImportArgs};
use crate::classifier::{build, with_tensors};
use crate::exit::Outcome;
use crate::model_folder::{
    DESCRIPTION, ModelDescription, ModelFolder, ModelTensors, of_description,
};
use crate::registry::{ModelConfig, Registry};
use crate::voice::say;
use bonfire_trainer::RunFolder;
use bonfire_trainer::config::Plan;
use bonfire_trainer::weights::{Fitted, Head, export_pytorch, load_weights};
use burn::tensor::Device;
use std::path::Path;

/// Makes a folder that `bonfire predict` and `bonfire evaluate` take.
pub(crate) fn import(registry: &Registry, args: &ImportArgs) -> Result<Outcome, CliError> {
    let description = ModelDescription::load(&args.model)?;
    if args.out.join(DESCRIPTION).exists() {
        return Err(CliError::ModelFile {
            path: args.out.clone(),
            problem: "it holds a model already; give a new folder to --out".to_string(),
        });
    }
    let head = if args.reset_head { Head::Keep } else { Head::Load };
    let import =
        || registry.kind(&description.kind)?.import(&description, &args.file, head, &args.out);
    import().map_err(of_description(&args.model))?;
    say(format_args!("model folder {}", args.out.display()));
    Ok(Outcome::Done)
}

/// Writes the tensors of a model under PyTorch's names.
pub(crate) fn export(registry: &Registry, args: &ExportArgs) -> Result<Outcome, CliError> {
    let folder = ModelFolder::open(&args.model)?;
    let (description, tensors) = (&folder.description, folder.tensors(args.variant.as_deref())?);
    let export = || registry.kind(&description.kind)?.export(description, tensors, &args.out);
    export().map_err(of_description(&folder.description_file()))?;
    say(format_args!("weights {}", args.out.display()));
    Ok(Outcome::Done)
}

pub(crate) fn import_model<C: ModelConfig>(
    description: &ModelDescription,
    file: &Path,
    head: Head,
    out: &Path,
) -> Result<(), CliError> {
    Device::flex().seed(0);
    let (config, model) = build::<C>(description)?;
    let fitted = load_weights(model, file, &config.weight_names(), head)?;
    tell(&fitted, file);
    let written = ModelDescription { config: keys_of(&config)?, ..description.clone() };
    Ok(RunFolder::create(out)?.write_model(&fitted.model, &written.to_toml()?)?)
}

pub(crate) fn export_model<C: ModelConfig>(
    description: &ModelDescription,
    tensors: ModelTensors,
    out: &Path,
) -> Result<(), CliError> {
    let (config, model) = with_tensors::<C>(description, tensors)?;
    Ok(export_pytorch(&model, &config.weight_names(), out)?)
}

/// Gives a new model the weights that its recipe names.
pub(crate) fn begin_with<C: ModelConfig>(
    config: &C,
    model: C::Model,
    plan: &Plan,
) -> Result<C::Model, CliError> {
    let Some(weights) = &plan.model.weights else { return Ok(model) };
    let head = if weights.reset_head { Head::Keep } else { Head::Load };
    let fitted = load_weights(model, &weights.path, &config.weight_names(), head)?;
    tell(&fitted, &weights.path);
    Ok(fitted.model)
}

/// All keys of a model's configuration, defaults included.
pub(crate) fn keys_of<C: ModelConfig>(config: &C) -> Result<toml::Table, CliError> {
    toml::Table::try_from(config).map_err(|error| CliError::Io {
        action: "encoding",
        path: DESCRIPTION.into(),
        source: std::io::Error::other(error.to_string()),
    })
}

fn tell<M>(fitted: &Fitted<M>, path: &Path) {
    let kept = match fitted.kept.as_slice() {
        [] => String::new(),
        kept => format!("; new remain {}", kept.join(", ")),
    };
    say(format_args!(
        "{} tensors from {} ({}){kept}",
        fitted.num_loaded,
        path.display(),
        fitted.names
    ));
}
