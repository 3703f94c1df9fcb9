//! One attempt: all ranks of this node, from their start to their end.

use crate::cause::{Ended, LaunchOutcome, RankFailure, root_cause_of_nodes};
use crate::error::LaunchError;
use crate::error_files::ErrorFiles;
use crate::hints::Clues;
use crate::launch::{Launch, stop_in};
use crate::meeting::{Card, Member, Over};
use crate::spec::Place;
use crate::supervise::{Outside, supervise};
use crate::worker::Workers;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Signals that arrived since they were last asked for.
pub(crate) type Signalled<'a> = &'a mut dyn FnMut() -> Vec<i32>;

/// How an attempt has ended, for all nodes alike.
pub(crate) enum End {
    Finished,
    /// The ranks were asked to stop.
    Stopped(LaunchOutcome),
    Failed(RankFailure),
    /// A node is gone; which, in words.
    Lost(String),
    /// Something that another attempt would not change, in words.
    Final(String),
    /// A node has come for which there is room.
    Grows,
}

impl End {
    /// The same where a node was asked to stop, which is not started again whatever became of the others.
    fn after(self, signal: Option<Signal>) -> Self {
        let Some(signal) = signal else { return self };
        match self {
            Self::Failed(failure) => Self::Stopped(LaunchOutcome::failed(failure)),
            Self::Lost(reason) => Self::Final(reason),
            Self::Grows => Self::Stopped(LaunchOutcome::stopped(Some(signal), 128 + signal as i32)),
            end => end,
        }
    }
}

pub(crate) struct Attempt<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) place: Place,
    /// The nodes that take part.
    pub(crate) cards: Vec<Card>,
    pub(crate) member: Option<&'a Member>,
}

impl Attempt<'_> {
    /// Starts the ranks and waits for them, and for those of the other nodes.
    pub(crate) fn run(&self, signals: Signalled<'_>) -> Result<End, LaunchError> {
        let (spec, place) = (&self.launch.spec, &self.place);
        let files = ErrorFiles::create(&place.run_id)?;
        let mut clues = Clues::new();
        let mut workers = match Workers::start(spec, place, &files) {
            Ok(workers) => workers,
            Err(error) => {
                if let Some(member) = self.member {
                    // The others would wait for ranks that never come.
                    let (node, reason) = (place.node, error.to_string());
                    drop(member.end(place.attempt, &Over::NotStarted { node, reason }));
                }
                return Err(error);
            }
        };
        let mut outside = Nodes {
            attempt: self,
            signals,
            asked: Instant::now(),
            over: None,
            relayed: None,
            stopping: false,
        };
        let ended = supervise(&mut workers, spec, place.first_rank, &mut outside);
        let over = outside.over.take();
        workers.drain();
        clues.last_words = (0..place.nproc).map(|rank| workers.last_words(rank)).collect();
        let cause = ended.cause(&files, &clues);
        match self.member {
            None => Ok(self.end_alone(&ended, cause)),
            Some(member) => {
                let end = self.end_among(member, &ended, cause, over, signals)?;
                Ok(end.after(ended.stopped_by.first().copied()))
            }
        }
    }

    fn end_alone(&self, ended: &Ended, cause: Option<RankFailure>) -> End {
        if let Some(signal) = ended.killed_by_user {
            return End::Stopped(LaunchOutcome::killed_by_user(signal));
        }
        let signal = ended.stopped_by.first().copied();
        let end = match (cause, ended.stop()) {
            (Some(failure), _) => End::Failed(failure),
            (None, Some(code)) => End::Stopped(LaunchOutcome::stopped(signal, code)),
            (None, None) => End::Finished,
        };
        end.after(signal)
    }

    /// Finds out with the other nodes how the attempt has ended.
    fn end_among(
        &self,
        member: &Member,
        ended: &Ended,
        cause: Option<RankFailure>,
        over: Option<Result<Over, String>>,
        signals: Signalled<'_>,
    ) -> Result<End, LaunchError> {
        let attempt = self.place.attempt;
        if let Some(signal) = ended.killed_by_user {
            let (signal, outcome) = (signal as i32, LaunchOutcome::killed_by_user(signal));
            let over = Over::Stopped { signal: Some(signal), code: outcome.exit_code };
            drop(member.end(attempt, &over));
            return Ok(End::Stopped(outcome));
        }
        let signal = ended.stopped_by.first().map(|signal| *signal as i32);
        let own = match (&cause, ended.stop()) {
            (Some(failure), _) if signal.is_some() => {
                Some(Over::Stopped { signal, code: failure.exit.code() })
            }
            (Some(_), _) => Some(Over::Failed),
            (None, Some(code)) => Some(Over::Stopped { signal, code }),
            (None, None) => None,
        };
        let over = match (over, own) {
            (Some(Ok(over)), _) => over,
            // Without the host nobody can say more than what was seen here.
            (Some(Err(lost)), _) => return Ok(cause.map_or(End::Final(lost), final_failure)),
            (None, Some(own)) => match member.end(attempt, &own) {
                Ok(over) => over,
                Err(error) => {
                    return Ok(cause.map_or(End::Final(host_lost(&error)), final_failure));
                }
            },
            (None, None) => match self.await_others(member, signals)? {
                Ok(over) => over,
                Err(lost) => return Ok(End::Final(lost)),
            },
        };
        match over {
            Over::Finished => Ok(End::Finished),
            Over::Grows => Ok(End::Grows),
            Over::Stopped { signal, code } => {
                self.let_others_stop(member, signals)?;
                let signal = signal.and_then(|number| Signal::try_from(number).ok());
                Ok(End::Stopped(LaunchOutcome::stopped(signal, code)))
            }
            Over::NotStarted { node, reason } => {
                Ok(End::Final(format!("node {node} could not start its ranks: {reason}")))
            }
            Over::Failed => {
                let spec = &self.launch.spec;
                let wait = spec.peer_pause + spec.shutdown_timeout;
                let heard = member.exchange_causes(attempt, &self.cards, cause.clone(), wait);
                let (causes, lost) = match heard {
                    Ok(heard) => heard,
                    Err(error) => {
                        return Ok(cause.map_or(End::Final(host_lost(&error)), final_failure));
                    }
                };
                match (lost, root_cause_of_nodes(causes)) {
                    // Its ranks are gone with it, which made the others fail.
                    (Some(node), _) => Ok(End::Lost(node_lost(node, &self.cards[node].machine))),
                    (None, Some(failure)) => Ok(End::Failed(failure)),
                    (None, None) => {
                        Ok(End::Lost("a rank has failed, and no node says which".to_owned()))
                    }
                }
            }
            Over::Lost { node, machine } => Ok(End::Lost(node_lost(node, &machine))),
        }
    }

    /// Keeps the store there until the ranks of all nodes have stopped, for as long as they save.
    fn let_others_stop(&self, member: &Member, signals: Signalled<'_>) -> Result<(), LaunchError> {
        let attempt = self.place.attempt;
        // A host that is gone has nothing to wait for.
        let _ = member.done(attempt);
        while member.is_host() && member.is_anyone_at_work(attempt, &self.cards)? {
            if stop_in(&signals()).is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Waits until the ranks of all nodes have ended, once those of this node have finished.
    fn await_others(
        &self,
        member: &Member,
        signals: Signalled<'_>,
    ) -> Result<Result<Over, String>, LaunchError> {
        let attempt = self.place.attempt;
        member.done(attempt)?;
        loop {
            match member.over(attempt) {
                Ok(Some(over)) => return Ok(Ok(over)),
                Ok(None) => {}
                Err(error) => return Ok(Err(host_lost(&error))),
            }
            if let Some(signal) = stop_in(&signals()) {
                let code = 128 + signal as i32;
                let over = Over::Stopped { signal: Some(signal as i32), code };
                return Ok(Ok(member.end(attempt, &over)?));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn node_lost(node: usize, machine: &str) -> String {
    format!(
        "node {node} ({machine}) is gone: its launcher has ended, or its machine does not answer"
    )
}

/// The failure of a rank of this node, when nobody can be asked for another cause.
fn final_failure(failure: RankFailure) -> End {
    End::Stopped(LaunchOutcome::failed(failure))
}

fn host_lost(error: &bonfire_comm::CommError) -> String {
    format!("the node that hosts the rendezvous is gone ({error})")
}

/// What a supervisor hears of the other nodes.
struct Nodes<'a, 'b> {
    attempt: &'a Attempt<'a>,
    signals: &'b mut dyn FnMut() -> Vec<i32>,
    asked: Instant,
    /// Why the attempt is over, or that the host is lost.
    over: Option<Result<Over, String>>,
    /// A signal that made the ranks of another node stop, until those of this one have it too.
    relayed: Option<i32>,
    /// Whether the ranks of this node have been asked to stop.
    stopping: bool,
}

impl Outside for Nodes<'_, '_> {
    fn signals(&mut self) -> Vec<i32> {
        let mut signals = (self.signals)();
        self.stopping |= stop_in(&signals).is_some();
        // Whoever stops already is saving: a second signal would kill it.
        if let Some(signal) = self.relayed.take().filter(|_| !self.stopping) {
            signals.push(signal);
            self.stopping = true;
        }
        signals
    }

    fn is_over(&mut self) -> bool {
        let Attempt { launch, place, member, .. } = self.attempt;
        let Some(member) = member else { return false };
        if self.over.is_none() && self.asked.elapsed() >= launch.monitor_interval {
            self.asked = Instant::now();
            self.over = match member.over(place.attempt) {
                Ok(None) => None,
                // Ranks agree on a stop themselves; those that do not talk to each other are told.
                Ok(Some(Over::Stopped { signal, .. })) => {
                    self.relayed = Some(signal.unwrap_or(Signal::SIGTERM as i32));
                    None
                }
                Ok(Some(over)) => Some(Ok(over)),
                Err(error) => Some(Err(host_lost(&error))),
            };
        }
        self.over.is_some()
    }

    fn failed(&mut self) {
        if let Some(member) = self.attempt.member
            && let Ok(over) = member.end(self.attempt.place.attempt, &Over::Failed)
        {
            self.over = Some(Ok(over));
        }
    }
}
