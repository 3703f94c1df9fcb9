//! Two loops of the same training in one process, in turns.

use crate::turns::{Side, Turn, Turns};
use crate::{Options, Result, burn_loop, ranks, trainer_loop};
use bonfire::comm::ProcessGroup;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::thread;

/// What is compared.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Args {
    /// The loop that the other is measured by.
    #[arg(long, value_enum)]
    base: Loop,
    /// The loop that is measured.
    #[arg(long, value_enum)]
    other: Loop,
    /// Steps of a turn; the first, which finds the caches cold, is not measured.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u64).range(2..))]
    turn_steps: u64,
}

/// A loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Loop {
    /// The loop that one writes with Burn alone; of one rank.
    Burn,
    /// The `Trainer`.
    Trainer,
    /// The `Trainer` with all outputs.
    Outputs,
    /// The same with every step profiled.
    Profiled,
}

/// Runs both until the time is over; rank 0 returns the seconds of their turns as a line of JSON.
pub(crate) fn run(args: Args, options: &Options) -> Result<Option<String>> {
    let group = ranks::world()?;
    let rank = group.rank();
    let groups = (group.duplicate("base")?, group.duplicate("other")?);
    let turns = Turns::new();
    let measured = options.measured()?;
    let side = |side, kind, group: ProcessGroup| {
        let turns = turns.clone();
        let pace = move || Turn::new(turns, side, args.turn_steps, measured);
        // An error is told as text, since it cannot leave the thread as it is.
        move || {
            // Cores differ in what else they have to do.
            stay_on_one_core(rank)
                .and_then(|()| run_loop(kind, options, group, pace))
                .map_err(|error| error.to_string())
        }
    };
    let base = side(Side::Base, args.base, groups.0);
    let other = side(Side::Other, args.other, groups.1);
    let join = |thread: thread::ScopedJoinHandle<'_, std::result::Result<(), String>>| {
        thread.join().map_err(|_| "a loop panicked".to_string())?
    };
    thread::scope(|scope| {
        let (base, other) = (scope.spawn(base), scope.spawn(other));
        let (base, other) = (join(base), join(other));
        base.and(other)
    })?;
    Ok((rank == 0).then(|| serde_json::to_string(&turns.take())).transpose()?)
}

/// Runs one of the loops until the time is over.
fn run_loop(
    kind: Loop,
    options: &Options,
    group: ProcessGroup,
    pace: impl FnOnce() -> Turn,
) -> Result<()> {
    let outputs = matches!(kind, Loop::Outputs | Loop::Profiled);
    let args = trainer_loop::Args { outputs, profile: kind == Loop::Profiled };
    match kind {
        Loop::Burn if group.world_size() > 1 => Err("the loop of Burn alone has one rank".into()),
        Loop::Burn => burn_loop::run(options, &mut pace()),
        _ => trainer_loop::run(args, options, &group, pace),
    }
}

/// Keeps this thread, and those that it starts, on one core of those that it may use: the ranks' are as
/// many as there are.
fn stay_on_one_core(rank: usize) -> Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let cores: Vec<usize> =
        (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).collect();
    // The first core is the one that interrupts go to.
    let core = cores.iter().rev().cycle().nth(rank).ok_or("no core may be used")?;
    let mut one = CpuSet::new();
    one.set(*core)?;
    Ok(sched_setaffinity(this, &one)?)
}
