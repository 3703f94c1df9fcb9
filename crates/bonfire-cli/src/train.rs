//! `bonfire train`: as launcher, as a rank of a group, or alone.

use crate::args::TrainArgs;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::process::limit_threads;
use crate::registry::{ModelKind, Registry};
use crate::worker::Rank;
use crate::{CliError, launcher};
use bonfire_comm::{InitOptions, ProcessGroup, RankEnv, init_process_group, local};
use bonfire_trainer::config::{EngineKind, Plan, RunConfig};
use std::sync::{Arc, Mutex};

/// A recipe, checked for a world size.
pub(crate) struct Recipe {
    pub(crate) config: RunConfig,
    pub(crate) plan: Plan,
    pub(crate) model: Arc<dyn ModelKind>,
}

impl Recipe {
    fn load(registry: &Registry, args: &TrainArgs, world_size: usize) -> Result<Self, CliError> {
        let config = RunConfig::load_with_overrides(&args.config, &args.overrides)?;
        let plan = Plan::resolve(&config, world_size)?;
        let model = registry.resolve(&config, &plan)?;
        Ok(Self { config, plan, model })
    }
}

pub(crate) fn train(registry: &Registry, args: &TrainArgs) -> Result<Outcome, CliError> {
    if let Some(env) = RankEnv::detect()? {
        let recipe = Recipe::load(registry, args, env.world_size)?;
        return join(&recipe, args, &env);
    }
    let ranks = args.nproc_per_node as usize;
    let recipe = Recipe::load(registry, args, ranks)?;
    match (ranks, recipe.plan.distributed.engine) {
        (1, _) => alone(&recipe, args),
        (_, EngineKind::Local) => threads(&recipe, args, ranks),
        _ => launcher::launch(&recipe.plan, args, ranks),
    }
}

/// Trains as the rank that the environment names.
fn join(recipe: &Recipe, args: &TrainArgs, env: &RankEnv) -> Result<Outcome, CliError> {
    if recipe.plan.distributed.engine == EngineKind::Local {
        return Err(CliError::Engine {
            engine: EngineKind::Local.to_string(),
            reason: "it joins threads of one process, and the environment names a rank (RANK); use \
                     \"host\" or \"auto\"",
        });
    }
    let interrupt = install_interrupt()?;
    let threads = limit_threads(env.local_world_size);
    let options = InitOptions::default()
        .with_timeout(recipe.plan.distributed.timeout)
        .with_insecure(args.insecure);
    let group = init_process_group(env, options)?;
    rank(recipe, args, group, &interrupt, threads)
}

/// Trains in this process, the only rank.
fn alone(recipe: &Recipe, args: &TrainArgs) -> Result<Outcome, CliError> {
    let interrupt = install_interrupt()?;
    rank(recipe, args, ProcessGroup::single(), &interrupt, limit_threads(1))
}

/// Trains with ranks that are threads of this process.
fn threads(recipe: &Recipe, args: &TrainArgs, ranks: usize) -> Result<Outcome, CliError> {
    let interrupt = install_interrupt()?;
    let threads = limit_threads(ranks);
    let timeout = recipe.plan.distributed.timeout;
    let first_error = Mutex::new(None);
    let outcomes = local::spawn_with_timeout(ranks, timeout, |group| {
        rank(recipe, args, group, &interrupt, threads).inspect_err(|error| {
            let mut first = first_error.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            first.get_or_insert_with(|| error.to_string());
        })
    });
    match first_error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(CliError::Threads(error)),
        None => Ok(outcomes.into_iter().flatten().next().unwrap_or(Outcome::Done)),
    }
}

fn rank(
    recipe: &Recipe,
    args: &TrainArgs,
    group: ProcessGroup,
    interrupt: &Interrupt,
    threads: usize,
) -> Result<Outcome, CliError> {
    let rank = Rank { group: group.clone(), args, interrupt, threads };
    let result = recipe.model.train(&recipe.config, &recipe.plan, rank);
    // The others would only see that this rank left.
    result.inspect_err(|error| group.abort(&error.to_string()))
}

fn install_interrupt() -> Result<Interrupt, CliError> {
    Interrupt::install().map_err(|source| CliError::Io {
        action: "installing the signal handlers of",
        path: "this process".into(),
        source,
    })
}
