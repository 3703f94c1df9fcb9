//! A node's part in a run, from the meeting to the end.

use crate::attempt::{Attempt, End, Signalled};
use crate::cause::LaunchOutcome;
use crate::command::tell_threads;
use crate::count::NodeCount;
use crate::error::LaunchError;
use crate::meeting::{Card, Invitation, MeetingConfig, Member};
use crate::spec::{Place, WorkerSpec};
use crate::token;
use bonfire_comm::{CommError, StoreOptions, StoreServer};
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A run, as one node takes part in it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Launch {
    /// What the ranks are.
    pub spec: WorkerSpec,
    /// Ranks on this node.
    pub nproc: usize,
    /// How this node meets the others; `None` for a run of this node alone, on a free port.
    pub meet: Option<Meet>,
    /// Restarts of all ranks after failures.
    pub max_restarts: u32,
    /// Pause before the first restart; it doubles up to 60 s.
    pub backoff: Duration,
    /// Time between two looks at what the other nodes say.
    pub monitor_interval: Duration,
}

/// How nodes meet.
#[derive(Debug, Clone)]
pub struct Meet {
    /// Nodes of the run.
    pub nodes: NodeCount,
    /// Place of this node; the first hosts the store. `None` takes places by arrival: then the first
    /// node that comes hosts it, of those whose address `host` is.
    pub node_rank: Option<usize>,
    /// Where they meet.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// Name of the run (`BONFIRE_RUN_ID`).
    pub run_id: String,
    /// The secret of all nodes (`BONFIRE_TOKEN`).
    pub token: Option<String>,
    /// Whether nodes may meet without one, on a network that is trusted.
    pub insecure: bool,
    /// How long the least number of nodes is waited for.
    pub join_timeout: Duration,
    /// How long more nodes are waited for once they are there.
    pub last_call: Duration,
}

impl Launch {
    /// Describes `nproc` ranks of a program on this machine, with no restarts.
    pub fn new(spec: WorkerSpec, nproc: usize) -> Self {
        Self {
            spec,
            nproc,
            meet: None,
            max_restarts: 0,
            backoff: Duration::from_secs(1),
            monitor_interval: Duration::from_millis(100),
        }
    }

    /// The variables for the number of threads that ranks get for want of the user's, in words; `None`
    /// where they get none.
    pub fn threads_in_words(&self) -> Option<String> {
        tell_threads(&self.spec, self.nproc)
    }
}

/// Runs this node's ranks and returns when the run has ended.
///
/// The calling thread must not end before: the kernel kills a rank when the thread that started it
/// ends. From the first call on, the process no longer ends by itself on the forwarded signals.
///
/// # Errors
/// When the nodes could not meet, or ranks could not be started; none is left running then. Ranks that
/// fail are no error but a [`LaunchOutcome`].
pub fn launch(launch: &Launch) -> Result<LaunchOutcome, LaunchError> {
    let mut signals = crate::signals::Forwarded::install()?;
    launch_with(launch, &mut || signals.pending())
}

/// As [`launch`]; `signals` returns those that arrived since it was last asked.
pub(crate) fn launch_with(
    launch: &Launch,
    signals: &mut dyn FnMut() -> Vec<i32>,
) -> Result<LaunchOutcome, LaunchError> {
    let mut node = Node::enter(launch, signals)?;
    let mut restarts = 0;
    loop {
        let (place, cards) = node.join(launch, signals)?;
        let ranks = place.world_size;
        let attempt = Attempt { launch, place, cards, member: node.member() };
        let end = attempt.run(signals)?;
        let (outcome, counts) = match end {
            End::Finished => return Ok(LaunchOutcome::finished(ranks)),
            End::Stopped(outcome) => return Ok(outcome),
            End::Failed(failure) => (LaunchOutcome::failed(failure), true),
            End::Lost(summary) => (LaunchOutcome::lost(summary), true),
            End::Final(summary) => return Ok(LaunchOutcome::lost(summary)),
            End::Grows => (LaunchOutcome::lost("a node has come".to_owned()), false),
        };
        if counts && restarts == launch.max_restarts {
            return Ok(outcome);
        }
        let pause = if counts { pause(launch.backoff, restarts) } else { Duration::ZERO };
        restarts += u32::from(counts);
        match counts {
            true => tracing::warn!(
                "{}; restart {restarts} of {} in {pause:?}",
                outcome.summary,
                launch.max_restarts
            ),
            false => tracing::info!("{}; all ranks are started again with it", outcome.summary),
        }
        if let Some(signal) = wait(pause, signals) {
            return Ok(LaunchOutcome::stopped(Some(signal), 128 + signal as i32));
        }
    }
}

fn pause(first: Duration, restarts: u32) -> Duration {
    first.saturating_mul(1u32.checked_shl(restarts).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
}

/// Waits; a signal that ends ranks ends it too.
fn wait(pause: Duration, signals: &mut dyn FnMut() -> Vec<i32>) -> Option<Signal> {
    let limit = Instant::now() + pause;
    loop {
        if let Some(signal) = stop_in(&signals()) {
            return Some(signal);
        }
        let left = limit.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// The first signal that asks to stop.
pub(crate) fn stop_in(signals: &[i32]) -> Option<Signal> {
    let mut known = signals.iter().filter_map(|number| Signal::try_from(*number).ok());
    known.find(|signal| *signal != Signal::SIGUSR2)
}

/// This node, alone or among others.
enum Node {
    Alone { store: StoreServer, run_id: String, token: String, attempts: u32 },
    Among { member: Box<Member>, meet: Box<Meet> },
}

impl Node {
    fn enter(launch: &Launch, signals: Signalled<'_>) -> Result<Self, LaunchError> {
        let Some(meet) = &launch.meet else {
            let (run_id, token) = (token::draw(8)?, token::draw(16)?);
            let options = StoreOptions {
                token: Some(token.clone()),
                run_id: run_id.clone(),
                restart_count: None,
            };
            let store = StoreServer::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &options)?;
            return Ok(Self::Alone { store, run_id, token, attempts: 0 });
        };
        let mut meet = meet.clone();
        if meet.nodes.max == 1 && meet.node_rank.is_some() {
            // Nobody else has to know it.
            meet.token.get_or_insert(token::draw(16)?);
        }
        if meet.token.is_none() && !meet.insecure {
            return Err(CommError::NoToken.into());
        }
        let invitation = Invitation {
            host: meet.host.clone(),
            port: meet.port,
            run_id: meet.run_id.clone(),
            token: meet.token.clone(),
            node_rank: meet.node_rank,
            nproc: launch.nproc,
        };
        let config = MeetingConfig {
            nodes: meet.nodes,
            join_timeout: meet.join_timeout,
            last_call: meet.last_call,
        };
        let member = Member::enter(&invitation, config, &mut || stop_in(&signals()))?;
        if member.is_host() {
            tracing::info!("hosting the rendezvous on {}:{}", meet.host, meet.port);
        }
        Ok(Self::Among { member: Box::new(member), meet: Box::new(meet) })
    }

    fn member(&self) -> Option<&Member> {
        match self {
            Self::Alone { .. } => None,
            Self::Among { member, .. } => Some(member),
        }
    }

    /// This node's place in the next attempt, and all nodes of it.
    fn join(
        &mut self,
        launch: &Launch,
        signals: Signalled<'_>,
    ) -> Result<(Place, Vec<Card>), LaunchError> {
        let alone = Place {
            nproc: launch.nproc,
            first_rank: 0,
            world_size: launch.nproc,
            node: 0,
            nodes: 1,
            store_host: "127.0.0.1".to_owned(),
            store_port: 0,
            run_id: String::new(),
            token: String::new(),
            attempt: 0,
            max_restarts: launch.max_restarts,
        };
        match self {
            Self::Alone { store, run_id, token, attempts } => {
                let (store_port, attempt) = (store.address().port(), *attempts);
                *attempts += 1;
                let (run_id, token) = (run_id.clone(), token.clone());
                Ok((Place { store_port, run_id, token, attempt, ..alone }, Vec::new()))
            }
            Self::Among { member, meet } => {
                let (attempt, cards) = member.join(&mut || stop_in(&signals()))?;
                let node = cards.iter().position(|card| member.is(card)).unwrap_or(0);
                let place = Place {
                    first_rank: cards[..node].iter().map(|card| card.nproc).sum(),
                    world_size: cards.iter().map(|card| card.nproc).sum(),
                    node,
                    nodes: cards.len(),
                    store_host: meet.host.clone(),
                    store_port: meet.port,
                    run_id: meet.run_id.clone(),
                    token: meet.token.clone().unwrap_or_default(),
                    attempt,
                    ..alone
                };
                tracing::info!(
                    "node {node} of {}: ranks {} to {} of {}",
                    place.nodes,
                    place.first_rank,
                    place.first_rank + place.nproc - 1,
                    place.world_size
                );
                Ok((place, cards))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let seconds = |restarts| pause(Duration::from_secs(1), restarts).as_secs();
        assert_eq!([0, 1, 3, 6, 40].map(seconds), [1, 2, 8, 60, 60]);
        assert_eq!(pause(Duration::ZERO, 3), Duration::ZERO);
    }
}
