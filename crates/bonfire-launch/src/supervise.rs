//! Watches the workers until all have ended.
//!
//! ```text
//! Running --a rank fails--> Pausing --peer_pause--> Terminating --shutdown_timeout--> Killed
//!    \_______________________second SIGINT or SIGTERM______________________/
//! ```
//!
//! SIGTERM is sent on the way into `Terminating`, SIGKILL on the way into `Killed`. In every
//! phase the end of the last rank ends the watch.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::cause::{Ended, Exit, Failure, REQUEUE};
use crate::spec::WorkerSpec;
use crate::worker::Workers;

/// Time between two looks at the workers: a failure is dated no better than this.
const POLL: Duration = Duration::from_millis(20);

/// How far the end of the run has come.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Running,
    Pausing { until: Instant },
    Terminating { until: Instant },
    Killed,
}

struct Supervisor<'a> {
    workers: &'a mut Workers,
    spec: &'a WorkerSpec,
    first_rank: usize,
    phase: Phase,
    ended: Ended,
}

/// What the launcher hears while it watches.
pub(crate) trait Outside {
    /// Signals that arrived since this was last asked.
    fn signals(&mut self) -> Vec<i32>;

    /// Whether the other nodes have ended the attempt; called every monitor interval.
    fn is_over(&mut self) -> bool;

    /// Hears of the first failure on this node.
    fn failed(&mut self);
}

/// Watches the workers until all have ended, and returns how they did.
pub(crate) fn supervise(
    workers: &mut Workers,
    spec: &WorkerSpec,
    first_rank: usize,
    outside: &mut dyn Outside,
) -> Ended {
    let phase = Phase::Running;
    let mut supervisor = Supervisor { workers, spec, first_rank, phase, ended: Ended::default() };
    loop {
        for signal in outside.signals() {
            supervisor.forward(signal);
        }
        let failures = supervisor.ended.failures.len();
        supervisor.reap();
        let first = failures == 0 && !supervisor.ended.failures.is_empty();
        // Of ranks that were asked to stop the others hear at the end: it is no reason to start again.
        if first && supervisor.ended.stopped_by.is_empty() {
            outside.failed();
        }
        if !supervisor.workers.any_running() {
            return supervisor.ended;
        }
        if supervisor.phase == Phase::Running && outside.is_over() {
            // The ranks here may be about to say what they have seen of it.
            supervisor.phase = Phase::Pausing { until: Instant::now() + spec.peer_pause };
        }
        supervisor.advance(Instant::now());
        std::thread::sleep(POLL);
    }
}

impl Supervisor<'_> {
    /// Passes a signal on to the workers; a second SIGINT or SIGTERM kills them.
    fn forward(&mut self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else { return };
        let kills = matches!(signal, Signal::SIGINT | Signal::SIGTERM);
        if kills && self.ended.stopped_by.contains(&signal) {
            tracing::warn!("second {signal}: killing all ranks");
            self.ended.killed_by_user = Some(signal);
            self.kill();
            return;
        }
        // SIGUSR2 asks for a report and does not end a rank.
        if signal != Signal::SIGUSR2 {
            self.ended.stopped_by.push(signal);
        }
        tracing::info!("forwarding {signal} to all ranks");
        self.workers.signal(signal);
    }

    /// Notes the ranks that have ended.
    fn reap(&mut self) {
        for (local_rank, exit) in self.workers.reap() {
            let (rank, at) = (self.first_rank + local_rank, Instant::now());
            if self.is_orderly(exit) {
                tracing::debug!(rank, "{exit}");
                self.ended.stops.push(exit);
            } else if matches!(self.phase, Phase::Running | Phase::Pausing { .. }) {
                tracing::debug!(rank, "failed: {exit}");
                self.ended.failures.push(Failure { rank, local_rank, exit, at });
                if self.phase == Phase::Running {
                    self.phase = Phase::Pausing { until: at + self.spec.peer_pause };
                }
            }
        }
    }

    /// Moves on to the next phase when the time of this one is over.
    fn advance(&mut self, now: Instant) {
        match self.phase {
            Phase::Pausing { until } if now >= until => {
                self.workers.signal(Signal::SIGTERM);
                // A stopped process would not see it.
                self.workers.signal(Signal::SIGCONT);
                self.phase = Phase::Terminating { until: now + self.spec.shutdown_timeout };
            }
            Phase::Terminating { until } if now >= until => self.kill(),
            _ => {}
        }
    }

    fn kill(&mut self) {
        self.workers.signal(Signal::SIGKILL);
        self.phase = Phase::Killed;
    }

    /// Whether a rank ended as it should: it finished, asks to be requeued, or obeyed a signal. One
    /// that exits with the code of a signal has saved and left, whoever has sent it the signal: the
    /// others follow it, so it is waited for them.
    fn is_orderly(&self, exit: Exit) -> bool {
        const STOPS: [Signal; 4] =
            [Signal::SIGHUP, Signal::SIGINT, Signal::SIGUSR1, Signal::SIGTERM];
        let obeyed = |code| self.ended.stopped_by.iter().any(|&s| code == 128 + s as i32);
        match exit {
            Exit::Code(0 | REQUEUE) => true,
            Exit::Code(code) => obeyed(code) || STOPS.iter().any(|&s| code == 128 + s as i32),
            Exit::Signal(_) => obeyed(exit.code()),
        }
    }
}
