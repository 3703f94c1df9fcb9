//! The device thread: the only one that calls the library.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, Sender};

use super::conductor::Conductor;
use super::groups::Join;
use super::lane::{Job, Lane};
use super::library::{Library, Progress};
use super::shared::Shared;
use crate::failure::Failure;
use crate::header::Header;
use crate::host_engine::HostEngine;
use crate::late::Late;
use crate::{CommError, Engine, Result};

/// How often the thread looks when nothing is under way: for a rank that has died.
const IDLE: Duration = Duration::from_millis(50);
/// While something is.
const BUSY: Duration = Duration::from_micros(500);
/// While somebody waits for it, or all ranks for the next turn.
pub(super) const URGENT: Duration = Duration::from_micros(20);

/// The conductor of all groups that have every rank of the session.
pub(super) const WHOLE: u64 = 0;

/// What the thread is asked.
pub(super) enum Command {
    /// To make a group.
    Join(Join),
    /// To run an operation of a lane behind all that were started before.
    Start(u64, Job),
    /// To forget a lane, once its operations have ended.
    Retire(u64, Sender<()>),
    /// To look at the session's failure.
    Wake,
}

pub(super) struct Driver<L: Library> {
    pub(super) library: L,
    world: Arc<HostEngine>,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    pub(super) lanes: BTreeMap<u64, Lane<L>>,
    pub(super) conductors: BTreeMap<u64, Conductor>,
    pub(super) retiring: Vec<(u64, Sender<()>)>,
    /// Communicators that have been left, and by when they are closed at the latest.
    pub(super) leaving: Vec<(L::Comm, Instant)>,
}

impl<L: Library> Driver<L> {
    pub(super) fn new(
        library: L,
        world: Arc<HostEngine>,
        shared: Arc<Shared>,
        commands: Receiver<Command>,
    ) -> Self {
        let (lanes, conductors) = (BTreeMap::new(), BTreeMap::new());
        let (retiring, leaving) = (Vec::new(), Vec::new());
        Self { library, world, shared, commands, lanes, conductors, retiring, leaving }
    }

    /// Serves until all engines are gone.
    pub(super) fn run(mut self) {
        if let Err(detail) = self.library.attach() {
            self.fail(&CommError::Device { what: "be attached to".into(), detail });
        }
        loop {
            match self.next_command() {
                Next::Command(command) => self.obey(command),
                Next::Nothing => {}
                Next::End => break,
            }
            if let Err(error) = self.advance() {
                self.fail(&error);
            }
            self.retire();
        }
        for lane in std::mem::take(&mut self.lanes).into_values() {
            lane.comm.into_iter().for_each(|comm| self.leave(comm));
        }
        while !self.leaving.is_empty() {
            self.close_left();
            std::thread::sleep(BUSY);
        }
    }

    fn next_command(&self) -> Next {
        // A buffer that was placed out of turn would call at once, again and again.
        let is_launching = self.is_launching();
        let next = self.lanes.values().filter(|lane| !is_launching && self.is_at_turn(lane));
        let places = next.filter_map(|lane| lane.queue.front()?.buffer.awaited_place());
        let places: Vec<_> = places.collect();
        let mut select = Select::new();
        let commands = select.recv(&self.commands);
        for place in &places {
            select.recv(place);
        }
        match select.ready_timeout(self.patience()) {
            Ok(index) if index == commands => match self.commands.try_recv() {
                Ok(command) => Next::Command(command),
                Err(crossbeam_channel::TryRecvError::Empty) => Next::Nothing,
                Err(crossbeam_channel::TryRecvError::Disconnected) => Next::End,
            },
            // A place is read where it is needed.
            _ => Next::Nothing,
        }
    }

    fn patience(&self) -> Duration {
        let jobs = || self.lanes.values().filter_map(Lane::oldest);
        let is_urgent = jobs().any(|(job, ..)| job.status.is_urgent.load(Ordering::Relaxed));
        let waits_for_turn = self.conductors.values().any(|one| one.follows() && !one.is_settled());
        match jobs().next() {
            Some(_) if is_urgent || waits_for_turn || self.is_launching() => URGENT,
            Some(_) => BUSY,
            None if !self.leaving.is_empty() => BUSY,
            None if self.conductors.values().all(Conductor::is_settled) => IDLE,
            None => BUSY,
        }
    }

    /// Whether the library has still to put an operation on its stream. No other is launched then:
    /// it could get ahead on one rank and not on another.
    fn is_launching(&self) -> bool {
        self.lanes.values().any(Lane::is_launching)
    }

    /// Whether the job at the front of a lane may be launched, as far as other groups go.
    fn is_at_turn(&self, lane: &Lane<L>) -> bool {
        let (Some(header), Some(conductor)) =
            (lane.next_header(), self.conductors.get(&lane.conductor))
        else {
            return false;
        };
        !header.is_collective()
            || !conductor.follows()
            || conductor.turn().is_some_and(|turn| turn.is_of(&header))
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Join(join) => {
                let reply = join.reply.clone();
                let result = self.join(join);
                if let Err(error) = &result {
                    self.fail(error);
                }
                // An engine that has waited for too long has gone.
                let _ = reply.send(result);
            }
            Command::Start(lane, job) => match (self.shared.failure(), self.lanes.get_mut(&lane)) {
                (None, Some(lane)) => lane.queue.push_back(job),
                (failure, _) => {
                    self.shared.give_up(job.index);
                    drop(job.fail(&failure.unwrap_or_else(ended)));
                }
            },
            Command::Retire(lane, reply) => self.retiring.push((lane, reply)),
            Command::Wake => {}
        }
    }

    /// Does all that can be done without waiting.
    pub(super) fn advance(&mut self) -> Result<()> {
        if self.shared.failure().is_some() {
            return Ok(());
        }
        if let Some(failure) = self.world.failure() {
            return Err(failure);
        }
        while self.launch_one()? {}
        self.hear()?;
        for lane in self.lanes.values_mut() {
            lane.finish(&self.library)?;
        }
        self.watch()
    }

    /// Launches an operation whose turn it is and whose buffer is placed.
    fn launch_one(&mut self) -> Result<bool> {
        for lane in self.lanes.values_mut() {
            lane.settle(&self.library)?;
        }
        if self.is_launching() {
            return Ok(false);
        }
        for lane in self.lanes.values_mut() {
            let Some(header) = lane.next_header() else { continue };
            let Some(conductor) = self.conductors.get_mut(&lane.conductor) else { continue };
            if header.is_collective() && conductor.follows() {
                match conductor.turn() {
                    None => {
                        let deadline =
                            lane.queue.front().map_or_else(Instant::now, |job| job.call.deadline);
                        conductor.listen(deadline)?;
                        continue;
                    }
                    Some(turn) if !turn.is_of(&header) => continue,
                    Some(turn) => compare(lane, &header, turn)?,
                }
            }
            let Some((header, deadline)) = lane.launch(&self.library)? else { continue };
            // The others are told at once: the library may wait for them before it goes on.
            if header.is_collective() {
                let told = conductor.follows();
                conductor.launched(&header, deadline)?;
                if told || conductor.is_settled() {
                    lane.in_flight.iter_mut().for_each(|one| one.is_confirmed = true);
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Compares what the leader has launched with what this rank has.
    fn hear(&mut self) -> Result<()> {
        for (key, conductor) in &mut self.conductors {
            // By when the headers must have come that are missed now.
            let lanes = self.lanes.values().filter(|lane| lane.conductor == *key);
            let missed = lanes.flat_map(|lane| &lane.in_flight).filter(|one| !one.is_confirmed);
            let deadline = missed.map(|one| one.job.call.deadline).max();
            let deadline = deadline.unwrap_or_else(|| Instant::now() + IDLE);
            while let Some(told) = conductor.hear(deadline)? {
                let mut lanes = self.lanes.values_mut().filter(|lane| lane.conductor == *key);
                let Some(lane) = lanes.next() else { continue };
                let first = lane.in_flight.iter().position(|one| !one.is_confirmed);
                let Some(first) = first else { continue };
                let own = lane.in_flight[first].header;
                compare(lane, &own, &told)?;
                lane.in_flight[first].is_confirmed = true;
            }
        }
        Ok(())
    }

    /// Looks for operations that have run out of time, and for errors of the library.
    fn watch(&mut self) -> Result<()> {
        let now = Instant::now();
        for lane in self.lanes.values() {
            let Some((job, header, launched)) = lane.oldest() else { continue };
            if let Some(comm) = &lane.comm
                && let Progress::Failed(detail) = self.library.progress(comm)
            {
                // A rank that has died is a better reason than the connection that broke with it.
                std::thread::sleep(IDLE);
                return Err(self.failure().unwrap_or_else(|| lane.failure_of(&header, detail)));
            }
            if now < job.call.deadline {
                continue;
            }
            let timeout = job.call.timeout;
            if launched || self.conductors.get(&lane.conductor).is_some_and(Conductor::follows) {
                return Err(explain(lane, &header, timeout));
            }
            let missing = "the device has not come to the work that fills its buffer";
            return Err(
                late(lane, timeout, &progress_key(&lane.identity)).error(header, missing.into())
            );
        }
        Ok(())
    }

    pub(super) fn failure(&self) -> Option<CommError> {
        self.shared.failure().or_else(|| self.world.failure())
    }

    /// Ends the session, on all ranks.
    fn fail(&mut self, error: &CommError) {
        if self.shared.failure().is_some() {
            return;
        }
        let membership = self.world.membership();
        if membership.failure().is_none() {
            membership.fail(Failure::of(membership.rank(), error));
        }
        self.lanes
            .values()
            .filter_map(|lane| lane.first_unfinished(&self.library))
            .for_each(|it| self.shared.give_up(it));
        self.shared.fail(error);
        // Who waits is told first: an abort may take a while.
        let given_up: Vec<_> = self.lanes.values_mut().map(|lane| lane.fail(error)).collect();
        let (comms, in_use): (Vec<_>, Vec<_>) = given_up.into_iter().unzip();
        self.conductors.clear();
        if !self.library.abort(comms.into_iter().flatten().collect()) {
            // Memory that the device may still write to is never given to anybody else.
            std::mem::forget(in_use);
        }
    }
}

enum Next {
    Command(Command),
    Nothing,
    End,
}

/// Under which name a group's progress on the device is known, beside that of its companion.
pub(super) fn progress_key(identity: &str) -> String {
    format!("{identity}@device")
}

fn ended() -> CommError {
    CommError::Internal { detail: "the device thread has ended".into() }
}

/// Checks that this rank is about to do what the leader does.
fn compare<L: Library>(lane: &Lane<L>, own: &Header, leader: &Header) -> Result<()> {
    if own == leader {
        return Ok(());
    }
    let (local, remote) =
        own.parting(leader).unwrap_or_else(|| (own.to_string(), leader.to_string()));
    let (group, rank) = (lane.identity.clone(), lane.companion.rank());
    Err(CommError::Mismatch { group, rank, peer: 0, local, remote })
}

fn late<'a, L: Library>(lane: &'a Lane<L>, timeout: Duration, key: &'a str) -> Late<'a> {
    Late {
        membership: lane.companion.membership().as_ref(),
        identity: &lane.identity,
        key,
        rank: lane.companion.rank(),
        members: lane.companion.members(),
        timeout,
    }
}

fn explain<L: Library>(lane: &Lane<L>, header: &Header, timeout: Duration) -> CommError {
    let key = progress_key(&lane.identity);
    let peers: Vec<usize> =
        (0..lane.companion.world_size()).filter(|rank| *rank != lane.companion.rank()).collect();
    late(lane, timeout, &key).explain(header, &peers, |_| *header)
}
