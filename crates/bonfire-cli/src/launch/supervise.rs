//! Watches the workers until all have ended.
//!
//! ```text
//! Running --a rank fails--> Pausing --peer_pause--> Terminating --grace--> Killed
//!    \____________________________second SIGINT___________________________/
//! ```
//!
//! SIGTERM is sent on the way into `Terminating`, SIGKILL on the way into `Killed`. In every
//! phase the end of the last rank ends the watch.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::cause::{Ended, Exit, Failure};
use super::spec::WorkerSpec;
use super::worker::Workers;

/// Time between two looks at the workers: a failure is dated no better than this.
const POLL: Duration = Duration::from_millis(20);

/// Exit code of a rank that saved its state and asks to be started again.
const REQUEUE: i32 = 75;

/// How far the end of the run has come.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Running,
    Pausing { until: Instant },
    Terminating { until: Instant },
    Killed,
}

struct Supervisor<'a> {
    workers: Workers,
    spec: &'a WorkerSpec,
    phase: Phase,
    ended: Ended,
}

/// Watches the workers until all have ended, and returns how they did.
pub(super) fn supervise(
    workers: Workers,
    spec: &WorkerSpec,
    signals: &mut dyn FnMut() -> Vec<i32>,
) -> Ended {
    let mut supervisor =
        Supervisor { workers, spec, phase: Phase::Running, ended: Ended::default() };
    loop {
        for signal in signals() {
            supervisor.forward(signal);
        }
        supervisor.reap();
        if !supervisor.workers.any_running() {
            return supervisor.ended;
        }
        supervisor.advance(Instant::now());
        std::thread::sleep(POLL);
    }
}

impl Supervisor<'_> {
    /// Passes a signal on to the workers; a second SIGINT kills them.
    fn forward(&mut self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else { return };
        if signal == Signal::SIGINT && self.ended.stopped_by.contains(&signal) {
            tracing::warn!("second SIGINT: killing all ranks");
            self.ended.killed_by_user = true;
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
        for (rank, exit) in self.workers.reap() {
            let at = Instant::now();
            if self.is_orderly(exit) {
                tracing::debug!(rank, "{exit}");
                self.ended.stops.push(exit);
            } else if matches!(self.phase, Phase::Running | Phase::Pausing { .. }) {
                tracing::debug!(rank, "failed: {exit}");
                self.ended.failures.push(Failure { rank, exit, at });
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
                self.phase = Phase::Terminating { until: now + self.spec.grace };
            }
            Phase::Terminating { until } if now >= until => self.kill(),
            _ => {}
        }
    }

    fn kill(&mut self) {
        self.workers.signal(Signal::SIGKILL);
        self.phase = Phase::Killed;
    }

    /// Whether a rank ended as it should: it finished, asks to be requeued, or obeyed a signal.
    fn is_orderly(&self, exit: Exit) -> bool {
        let obeyed = |code| self.ended.stopped_by.iter().any(|&s| code == 128 + s as i32);
        match exit {
            Exit::Code(0 | REQUEUE) => true,
            Exit::Code(_) | Exit::Signal(_) => obeyed(exit.code()),
        }
    }
}
