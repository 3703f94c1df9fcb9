//! `bonfire train`: as launcher, as a rank of a group, or alone.

use crate::args::TrainArgs;
use crate::device::TrainDevice;
use crate::exit::Outcome;
use crate::flight::{self, DumpOnDemand};
use crate::interrupt::Interrupt;
use crate::own_data::Images;
use crate::registry::{ModelKind, Registry};
use crate::worker::{Rank, check_unused, default_run_folder};
use crate::{CliError, dry_run, launcher};
use bonfire_comm::{
    self as comm, InitOptions, ProcessGroup, RankEnv, init_process_group, init_single,
};
use bonfire_trainer::config::{DeviceKind, EngineKind, Plan, RunConfig};
use bonfire_trainer::{Resume, limit_threads};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

/// A recipe, checked for a world size.
pub(crate) struct Recipe {
    pub(crate) config: RunConfig,
    pub(crate) plan: Plan,
    pub(crate) model: Arc<dyn ModelKind>,
    pub(crate) images: Images,
}

impl Recipe {
    /// Reads a recipe, and tells all that is wrong with it at once.
    pub(crate) fn load(
        registry: &Registry,
        path: &Path,
        overrides: &[String],
        world_size: usize,
    ) -> Result<Self, CliError> {
        let mut read = RunConfig::load_what_can_be(path, overrides)?;
        let plan = Plan::resolve(&read.config, world_size);
        let plan = read.add(plan);
        let model = registry.resolve(&read.config);
        let model = read.add(model).flatten();
        let source = plan.as_ref().map(|plan| &plan.data.source);
        let images = source.map(|source| registry.images(&read.config, source));
        let images = images.and_then(|images| read.add(images));
        match (plan, model, images) {
            (Some(plan), Some(model), Some(images)) if read.problems.is_empty() => {
                Ok(Self { config: read.config, plan, model, images })
            }
            _ => Err(read.into_error().into()),
        }
    }

    fn of(registry: &Registry, args: &TrainArgs, world_size: usize) -> Result<Self, CliError> {
        Self::load(registry, &args.config, &args.all_overrides(), world_size)
    }
}

pub(crate) fn train(registry: &Registry, args: &TrainArgs) -> Result<Outcome, CliError> {
    if args.dry_run {
        return dry_run(registry, args);
    }
    if args.resume == Resume::Auto && args.out.is_none() {
        return Err(CliError::Option {
            option: "--resume auto".into(),
            problem: "it continues the run in --out; give that folder too".into(),
        });
    }
    if let Some(env) = RankEnv::detect()? {
        let recipe = Recipe::of(registry, args, env.world_size)?;
        return join(&recipe, &args.after(env.restart_count), &env);
    }
    let ranks = args.launch.nproc()?;
    let among_nodes = args.launch.is_among_nodes();
    // Of a number of nodes that changes the least has to be possible.
    let recipe = Recipe::of(registry, args, ranks * args.launch.nnodes.min)?;
    let engine = recipe.plan.distributed.engine;
    comm::EngineKind::from(engine).expect_available()?;
    expect_gpus(&recipe.plan)?;
    // Once, and before anything is started: the last rank of the machine has the last device.
    TrainDevice::open(&recipe.plan, ranks - 1)?;
    if engine == EngineKind::Local && recipe.plan.distributed.transport.is_some() {
        return Err(CliError::Option {
            option: "distributed.transport".into(),
            problem: "it is for engine \"host\", and this run has engine \"local\"".into(),
        });
    }
    let watched = args.launch.asks_for_a_launcher();
    match (ranks, engine) {
        (_, EngineKind::Mpi) => Err(CliError::Engine {
            setting: format!("distributed.engine = \"{engine}\""),
            reason: "MPI starts its ranks itself: mpirun --bind-to none -n 2 bonfire train ...",
        }),
        (_, EngineKind::Local) if watched => Err(CliError::Engine {
            setting: format!("distributed.engine = \"{engine}\""),
            reason: "it joins threads of one process, which has no launcher: no other nodes, restarts, logs or cores of its own",
        }),
        (1, _) if !watched => alone(&recipe, args),
        (_, EngineKind::Local) => threads(&recipe, args, ranks),
        _ => {
            let out = match (&args.out, recipe.plan.train.fast_dev_run) {
                (Some(out), _) => Some(out.clone()),
                (None, Some(_)) => None,
                // Nodes do not see each other's clocks.
                (None, None) if among_nodes => {
                    return Err(CliError::Option {
                        option: "--nnodes".into(),
                        problem: "give the folder of the run with --out, the same on all nodes"
                            .into(),
                    });
                }
                (None, None) => Some(default_run_folder(&recipe.plan.name)?),
            };
            // Ranks that are started again go on with what the folder has, so it has to be this run's.
            args.out.iter().try_for_each(|out| check_unused(out, &args.resume))?;
            let list = worker_args(args, out.as_deref());
            let outcome = launcher::launch_own(list, &args.launch, args.insecure)?;
            if let Outcome::Workers(_) = outcome {
                flight::folder(out.as_deref())
                    .iter()
                    .for_each(|folder| flight::tell_of_dumps(folder));
            }
            Ok(outcome)
        }
    }
}

/// Says what a run of as many ranks would be. Of ranks that the environment names, the first says it.
fn dry_run(registry: &Registry, args: &TrainArgs) -> Result<Outcome, CliError> {
    let env = RankEnv::detect()?;
    let of_options = args.launch.nproc()? * args.launch.nnodes.min;
    let ranks = env.as_ref().map_or(of_options, |env| env.world_size);
    let recipe = Recipe::of(registry, args, ranks)?;
    let survey = recipe.model.survey(&recipe.config, &recipe.plan, &recipe.images)?;
    match env {
        Some(env) if env.rank > 0 => Ok(Outcome::Done),
        _ => dry_run::show(&recipe.plan, &survey, args.plot.as_deref()),
    }
}

/// Refuses an engine for GPUs where there are none.
fn expect_gpus(plan: &Plan) -> Result<(), CliError> {
    match (plan.distributed.engine, plan.train.device) {
        (EngineKind::Nccl, DeviceKind::Cpu) => Err(CliError::Engine {
            setting: format!("distributed.engine = \"{}\"", EngineKind::Nccl),
            reason: "it connects GPUs, and the ranks train on the CPU; use --device cuda, or \"host\"",
        }),
        _ => Ok(()),
    }
}

/// Trains as the rank that the environment names.
fn join(recipe: &Recipe, args: &TrainArgs, env: &RankEnv) -> Result<Outcome, CliError> {
    expect_gpus(&recipe.plan)?;
    if recipe.plan.distributed.engine == EngineKind::Local {
        return Err(CliError::Engine {
            setting: format!("distributed.engine = \"{}\"", EngineKind::Local),
            reason: "it joins threads of one process, and the environment names a rank (RANK); use \
                     \"host\" or \"auto\"",
        });
    }
    let device = TrainDevice::open(&recipe.plan, env.local_rank)?;
    let interrupt = install_interrupt()?;
    let threads = limit_threads(env.local_world_size);
    let distributed = &recipe.plan.distributed;
    let mut options = InitOptions::default()
        .with_timeout(distributed.timeout)
        .with_insecure(args.insecure)
        .with_engine(distributed.engine.into())
        .with_algorithm(distributed.algorithm.into());
    options.transport = distributed.transport.map(Into::into);
    options.gpu = device.gpu();
    let group = init_process_group(env, options)?;
    let place = Place { group, device, threads };
    rank(recipe, args, place, &interrupt)
}

/// Trains in this process, the only rank.
fn alone(recipe: &Recipe, args: &TrainArgs) -> Result<Outcome, CliError> {
    let device = TrainDevice::open(&recipe.plan, 0)?;
    let interrupt = install_interrupt()?;
    let group = match recipe.plan.distributed.engine {
        // A GPU alone needs nobody to talk to.
        EngineKind::Nccl => {
            let timeout = recipe.plan.distributed.timeout;
            let mut options =
                InitOptions::default().with_timeout(timeout).with_engine(comm::EngineKind::Nccl);
            options.gpu = device.gpu();
            init_single(&options)?
        }
        _ => ProcessGroup::single(),
    };
    rank(recipe, args, Place { group, device, threads: limit_threads(1) }, &interrupt)
}

/// Trains with ranks that are threads of this process.
fn threads(recipe: &Recipe, args: &TrainArgs, ranks: usize) -> Result<Outcome, CliError> {
    let interrupt = install_interrupt()?;
    let threads = limit_threads(ranks);
    let timeout = recipe.plan.distributed.timeout;
    let algorithm = recipe.plan.distributed.algorithm.into();
    launcher::threads(ranks, timeout, |group| {
        let group = match algorithm {
            comm::Algorithm::Auto => group,
            algorithm => group.with_algorithm(algorithm)?,
        };
        let device = TrainDevice::open(&recipe.plan, group.rank())?;
        rank(recipe, args, Place { group, device, threads }, &interrupt)
    })
}

/// What a rank has of its machine and of the others.
struct Place {
    group: ProcessGroup,
    device: TrainDevice,
    threads: usize,
}

fn rank(
    recipe: &Recipe,
    args: &TrainArgs,
    place: Place,
    interrupt: &Interrupt,
) -> Result<Outcome, CliError> {
    let Place { group, device, threads } = place;
    let folder = flight::folder(args.out.as_deref());
    let dumps = DumpOnDemand::start(group.flight_recorder(), folder);
    let _dumps = dumps.map_err(cannot_handle_signals)?;
    let images = &recipe.images;
    let rank = Rank { group: group.clone(), device, args, images, interrupt, threads };
    let result = recipe.model.train(&recipe.config, &recipe.plan, rank);
    // The others would only see that this rank left.
    result.inspect_err(|error| group.abort(&error.to_string()))
}

/// The arguments by which a worker does what this program was asked to do.
fn worker_args(args: &TrainArgs, out: Option<&Path>) -> Vec<OsString> {
    let mut list: Vec<OsString> = vec!["train".into(), args.config.clone().into()];
    for value in args.all_overrides() {
        list.extend(["--set".into(), value.into()]);
    }
    if let Some(out) = out {
        list.extend(["--out".into(), out.into()]);
    }
    list.extend(["--resume".into(), resume_word(&args.resume)]);
    if let Some(baseline) = &args.baseline {
        list.extend(["--baseline".into(), baseline.into()]);
    }
    if let Some(record) = &args.trial_record {
        list.extend(["--trial-record".into(), record.into()]);
    }
    if args.insecure {
        list.push("--insecure".into());
    }
    list
}

fn resume_word(resume: &Resume) -> OsString {
    match resume {
        Resume::Never => "never".into(),
        Resume::Auto => "auto".into(),
        Resume::From(path) => path.into(),
    }
}

fn install_interrupt() -> Result<Interrupt, CliError> {
    Interrupt::install().map_err(cannot_handle_signals)
}

fn cannot_handle_signals(source: std::io::Error) -> CliError {
    let path = "this process".into();
    CliError::Io { action: "installing the signal handlers of", path, source }
}
