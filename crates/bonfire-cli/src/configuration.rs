//! `bonfire config`: what can be written in a recipe, and what is wrong with one.

use crate::CliError;
use crate::args::{CheckArgs, ConfigCommand};
use crate::exit::Outcome;
use crate::output::{print, print_line};
use crate::registry::Registry;
use crate::train::Recipe;
use bonfire_trainer::config::{ConfigError, json_schema, reference};

pub(crate) fn run(registry: &Registry, command: &ConfigCommand) -> Result<Outcome, CliError> {
    match command {
        ConfigCommand::Reference => print(reference(&registry.model_keys()))?,
        ConfigCommand::Schema => {
            print_line(format_args!("{:#}", json_schema(&registry.model_keys())))?
        }
        ConfigCommand::Check(args) => return check(registry, args),
    }
    Ok(Outcome::Done)
}

/// Reads recipes as a training would, and tells what is wrong with any of them.
fn check(registry: &Registry, args: &CheckArgs) -> Result<Outcome, CliError> {
    let mut problems = Vec::new();
    for path in &args.recipes {
        match Recipe::load(registry, path, &args.overrides, args.nproc_per_node as usize) {
            Ok(_) => print_line(format_args!("{}: ok", path.display()))?,
            Err(CliError::Config(error)) => problems.extend(error.problems),
            Err(error) => return Err(error),
        }
    }
    ConfigError::check(Outcome::Done, problems).map_err(CliError::from)
}
