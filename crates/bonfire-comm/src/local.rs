//! Ranks that are threads of one process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::failure::{Failure, FailureKind};
use crate::group::DEFAULT_TIMEOUT;
use crate::host_engine::{HostEngine, Plan};
use crate::links::LocalConnector;
use crate::membership::{Board, LocalMembership};
use crate::{Algorithm, ProcessGroup, Result};

/// Runs `f` in a thread per rank, each with its group (engine `local`), and returns what the
/// ranks returned, in their order.
///
/// A rank that panics or returns early poisons the others, so that none of them hangs.
///
/// # Panics
/// Continues the panic of the first rank that panicked, after all have ended, or says why the
/// first rank without a group has none.
pub fn spawn<T: Send>(world_size: usize, f: impl Fn(ProcessGroup) -> T + Send + Sync) -> Vec<T> {
    spawn_with_timeout(world_size, DEFAULT_TIMEOUT, f)
}

/// As [`spawn`], with another deadline for collectives.
///
/// # Panics
/// As [`spawn`].
pub fn spawn_with_timeout<T: Send>(
    world_size: usize,
    timeout: Duration,
    f: impl Fn(ProcessGroup) -> T + Send + Sync,
) -> Vec<T> {
    let wrap = |engine| Ok(ProcessGroup::from_engine(Arc::new(engine), "world", timeout));
    spawn_over(world_size, timeout, wrap, f)
}

/// As [`spawn_with_timeout`], where `wrap` makes the group of each rank.
///
/// # Panics
/// As [`spawn`].
#[allow(clippy::panic, reason = "a rank without a group ends its test, in words")]
pub(crate) fn spawn_over<T: Send>(
    world_size: usize,
    timeout: Duration,
    wrap: impl Fn(HostEngine) -> Result<ProcessGroup> + Send + Sync,
    f: impl Fn(ProcessGroup) -> T + Send + Sync,
) -> Vec<T> {
    let board = Board::new(world_size);
    let connector = LocalConnector::new(world_size);
    let run = |rank: usize| {
        let engine = join(rank, world_size, timeout, board.clone(), connector.clone());
        let group = match engine.and_then(&wrap) {
            Ok(group) => group,
            Err(error) => return Ok(Err(error)),
        };
        // The group outlives the unwinding, so that the panic's message is what the others hear.
        let result = catch_unwind(AssertUnwindSafe(|| Ok(f(group.clone()))));
        if let Err(panic) = &result {
            let detail = format!("panicked: {}", panic_message(panic.as_ref()));
            board.fail(Failure::new(rank, FailureKind::Died, detail));
        }
        result
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..world_size)
            .map(|rank| {
                std::thread::Builder::new()
                    .name(format!("rank {rank}"))
                    .spawn_scoped(scope, move || run(rank))
            })
            .collect();
        let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(Err),
            Err(error) => Err(Box::new(format!("cannot start a rank thread: {error}")) as Box<_>),
        };
        threads.into_iter().map(join).collect()
    });
    let finish = |result: std::thread::Result<Result<T>>| match result {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => panic!("{error}"),
        Err(panic) => resume_unwind(panic),
    };
    results.into_iter().map(finish).collect()
}

fn join(
    rank: usize,
    world_size: usize,
    timeout: Duration,
    board: Arc<Board>,
    connector: Arc<LocalConnector>,
) -> Result<HostEngine> {
    let membership = Arc::new(LocalMembership::new(rank, board));
    let members = (0..world_size).collect();
    let algorithm = Algorithm::Auto;
    let plan = Plan { identity: "world", members, timeout, algorithm, tuning: None };
    HostEngine::connect(plan, connector, membership)
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;
    use crate::testing::{Case, run_failure_cases};

    #[test]
    fn the_conformance_table_holds() {
        for size in 1..=4 {
            spawn(size, |group| conformance::check(&group));
        }
    }

    #[test]
    fn the_conformance_table_holds_for_every_algorithm() {
        for size in 2..=4 {
            spawn(size, |group| conformance::check_algorithms(&group));
        }
    }

    #[test]
    #[ignore = "takes minutes: cargo xtask soak conformance"]
    fn the_whole_conformance_table_holds() {
        for size in 1..=4 {
            spawn(size, |group| conformance::check_everything(&group));
        }
    }

    #[test]
    fn failures_reach_every_rank() {
        run_failure_cases(&|size, timeout, f: Case<'_>| {
            spawn_with_timeout(size, timeout, f);
        });
    }

    #[test]
    fn a_panicking_rank_poisons_the_others() {
        let errors = std::sync::Mutex::new(Vec::new());
        let result = catch_unwind(AssertUnwindSafe(|| {
            spawn(3, |group| {
                if group.rank() == 1 {
                    panic!("no more");
                }
                let error = group.all_reduce(&mut [0f32; 9], crate::ReduceOp::Sum).unwrap_err();
                crate::sync::lock(&errors).push(error.to_string());
            })
        }));
        assert_eq!(result.unwrap_err().downcast_ref::<&str>(), Some(&"no more"));
        let errors = errors.into_inner().unwrap();
        assert_eq!(errors.len(), 2);
        for error in errors {
            assert!(error.starts_with("rank 1 died (panicked: no more; rank "), "{error}");
        }
    }
}
