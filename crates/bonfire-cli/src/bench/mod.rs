//! `bonfire bench collectives`: how fast an engine moves bytes between ranks.
//!
//! `args` is what the user wrote and `plan` what follows from it; `op` knows the operations,
//! `subject` is one of them on one rank's memory, and `measure` times it; `table` and `json` tell.

mod args;
mod json;
mod measure;
mod op;
mod plan;
mod subject;
mod table;

pub(crate) use args::CollectivesArgs;

use crate::exit::Outcome;
use crate::flight::{self, DumpOnDemand};
use crate::{CliError, launcher};
use bonfire_comm::{
    CommError, EngineKind, InitOptions, MemoryKind, ProcessGroup, RankEnv, init_process_group,
};
use json::JsonFile;
use measure::{Row, measure};
use plan::Plan;
use table::Table;

/// Measures as launcher, as a rank of a group, or alone.
pub(crate) fn collectives(args: &CollectivesArgs) -> Result<Outcome, CliError> {
    if let Some(env) = RankEnv::detect()? {
        let plan = Plan::resolve(args, env.world_size)?;
        return join(&plan, args, &env);
    }
    let ranks = args.nproc_per_node as usize;
    let plan = Plan::resolve(args, ranks)?;
    args.engine.expect_available()?;
    if args.engine == EngineKind::Nccl {
        return Err(CommError::EngineUnavailable {
            engine: args.engine,
            reason: "this measures host memory, which that engine leaves to \"host\"".into(),
            remedy: "measure GPUs with nccl-tests, or choose \"host\"".into(),
        }
        .into());
    }
    match (ranks, args.engine) {
        (_, EngineKind::Mpi) => Err(CliError::Engine {
            setting: format!("--engine {}", args.engine),
            reason: "MPI starts its ranks itself: mpirun --bind-to none -n 2 bonfire bench ...",
        }),
        (1, EngineKind::Auto | EngineKind::Host | EngineKind::Local) => {
            rank(&plan, args, &ProcessGroup::single())
        }
        (_, EngineKind::Local) => {
            let timeout = InitOptions::default().timeout;
            launcher::threads(ranks, timeout, |group| rank(&plan, args, &group))
        }
        // The workers are told the same; each then finds its rank in the environment.
        _ => launcher::launch_here(std::env::args_os().skip(1).collect(), ranks),
    }
}

/// Measures as the rank that the environment names.
fn join(plan: &Plan, args: &CollectivesArgs, env: &RankEnv) -> Result<Outcome, CliError> {
    if args.engine == EngineKind::Local {
        return Err(CliError::Engine {
            setting: format!("--engine {}", args.engine),
            reason: "it joins threads of one process, and the environment names a rank (RANK); use \
                     \"host\" or \"auto\"",
        });
    }
    let options = InitOptions::default().with_engine(args.engine).with_insecure(args.insecure);
    let options = match args.transport {
        Some(transport) => options.with_transport(transport),
        None => options,
    };
    rank(plan, args, &init_process_group(env, options)?)
}

fn rank(plan: &Plan, args: &CollectivesArgs, world: &ProcessGroup) -> Result<Outcome, CliError> {
    let dumps = DumpOnDemand::start(world.flight_recorder(), flight::folder(None));
    let _dumps = dumps.map_err(|source| CliError::Io {
        action: "installing the signal handlers of",
        path: "this process".into(),
        source,
    })?;
    // The others would only see that this rank left.
    let rows =
        measure_all(plan, args, world).inspect_err(|error| world.abort(&error.to_string()))?;
    verdict(&rows)
}

/// Measures everything that the plan says. Every rank has the rows; rank 0 tells.
fn measure_all(
    plan: &Plan,
    args: &CollectivesArgs,
    world: &ProcessGroup,
) -> Result<Vec<Row>, CliError> {
    expect_host_memory(world)?;
    let first = world.rank() == 0;
    let json = args.json.as_deref().filter(|_| first).map(JsonFile::prepare).transpose()?;
    let groups = plan
        .algorithms
        .iter()
        .map(|&algorithm| Ok((algorithm, world.with_algorithm(algorithm)?)))
        .collect::<Result<Vec<_>, CliError>>()?;
    let table = Table::new(first);
    table.header(world, plan, args.transport)?;
    let mut rows = Vec::new();
    for case in plan.cases(world.world_size()) {
        for (algorithm, group) in &groups {
            let row = measure(world, group, *algorithm, &case)?;
            table.row(&row, &case, world.world_size())?;
            rows.push(row);
        }
    }
    table.footer(&rows)?;
    if let Some(json) = json {
        json.write(&rows)?;
    }
    Ok(rows)
}

fn verdict(rows: &[Row]) -> Result<Outcome, CliError> {
    match rows.iter().filter(|row| row.wrong != 0).count() {
        0 => Ok(Outcome::Done),
        wrong => Err(CliError::WrongElements { rows: wrong, total: rows.len() }),
    }
}

fn expect_host_memory(world: &ProcessGroup) -> Result<(), CliError> {
    if world.capabilities().memory.contains(&MemoryKind::Host) {
        return Ok(());
    }
    Err(CliError::Option {
        option: format!("--engine {}", world.engine_name()),
        problem: "it moves device memory only, and this program measures host memory; choose \
                  \"host\" or \"local\""
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_elements_are_an_error() {
        let row = |wrong| Row {
            op: "all_reduce",
            algorithm: "ring",
            engine: "host",
            dtype: "f32",
            bytes: 4096,
            world_size: 2,
            iterations: 20,
            time_us: 1.0,
            algbw_gbps: 4.096,
            busbw_gbps: 4.096,
            wrong,
        };
        assert!(matches!(verdict(&[row(0), row(0)]), Ok(Outcome::Done)));
        let error = verdict(&[row(0), row(7), row(1)]).unwrap_err().to_string();
        assert!(error.starts_with("2 of 3 measurements found wrong elements"), "{error}");
    }
}
