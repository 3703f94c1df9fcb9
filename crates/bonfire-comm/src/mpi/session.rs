//! The control plane of a session: failures, departures, progress, and the birth of groups.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::note::{Departure, NOTE_BYTES, Note};
use super::runtime::{Context, turn};
use super::shared::{NewGroup, Shared};
use super::sys::{Comm, Memory, Pending};
use crate::Result;

/// Time at the end of the process for the other ranks of a failed session to come there too, if
/// the session's timeout is not shorter. `mpirun` ends them when this rank leaves without them.
const FAREWELL: Duration = Duration::from_secs(30);

/// A session on the communication thread.
pub(super) struct Session {
    pub(super) context: Rc<Context>,
    pub(super) shared: Arc<Shared>,
    /// Carries notes only; its ranks are those of the world.
    pub(super) control: Comm,
    timeout: Duration,
    /// Groups that live or are being made.
    pub(super) active: Cell<usize>,
    pub(super) state: RefCell<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// How many collectives this rank has entered in each of its groups.
    pub(super) entered: BTreeMap<u64, Rc<Cell<u64>>>,
    /// What other ranks have answered.
    pub(super) progress: BTreeMap<(u64, usize), Option<u64>>,
    /// Who has left which group.
    pub(super) departures: BTreeMap<(u64, usize), Departure>,
    /// On rank 0: who is ready to make a group.
    pub(super) ready: BTreeMap<u64, Vec<usize>>,
    /// Groups that this rank waits for, with their members.
    pub(super) wanted: BTreeMap<u64, Vec<usize>>,
    pub(super) created: BTreeMap<u64, Result<Comm>>,
    /// Ranks that have said their last word.
    gone: BTreeSet<usize>,
    outbox: Vec<Pending<Memory>>,
}

impl Session {
    pub(super) fn new(
        context: Rc<Context>,
        shared: Arc<Shared>,
        control: Comm,
        timeout: Duration,
    ) -> Self {
        let (active, state) = (Cell::new(0), RefCell::default());
        Self { context, shared, control, timeout, active, state }
    }

    /// Hears and tells until the process ends.
    pub(super) async fn serve(self: Rc<Self>, requests: Receiver<NewGroup>) {
        let mut incoming = self.listen(Memory::new(NOTE_BYTES));
        let mut farewell = None;
        loop {
            incoming = self.hear_next(incoming);
            for request in requests.try_iter() {
                self.active.set(self.active.get() + 1);
                self.context.add(self.clone().make_group(request));
            }
            self.tell_failure();
            self.flush();
            if self.context.is_exiting() && self.active.get() == 0 {
                let since = *farewell.get_or_insert_with(|| {
                    self.tell_others(&Note::Bye);
                    Instant::now()
                });
                if self.is_over() {
                    break;
                }
                if self.shared.failure().is_some() && since.elapsed() > FAREWELL.min(self.timeout) {
                    // MPI_Finalize would wait for whoever is missing.
                    self.context.abandon();
                    break;
                }
            }
            turn().await;
        }
        if let Some(pending) = incoming {
            pending.cancel();
        }
    }

    /// Tells the others of this rank's failure, once.
    pub(super) fn tell_failure(&self) {
        if let Some(failure) = self.shared.take_untold() {
            self.tell_others(&Note::Failure(failure));
        }
    }

    /// Whether nobody needs this rank any more.
    fn is_over(&self) -> bool {
        let state = self.state.borrow();
        state.gone.len() + 1 == self.shared.size && state.outbox.is_empty()
    }

    /// Takes a note, if there is one, and listens for the next.
    fn hear_next(&self, incoming: Option<Pending<Memory>>) -> Option<Pending<Memory>> {
        let mut pending = incoming?;
        match pending.test() {
            Ok(None) => Some(pending),
            Ok(Some(memory)) => {
                self.context.pace.news();
                match Note::decode(memory.bytes()) {
                    Some((sender, note)) => self.hear(sender, note),
                    None => self.shared.abort("it received a malformed note"),
                }
                self.listen(memory)
            }
            Err(error) => {
                self.shared.publish(error);
                None
            }
        }
    }

    fn listen(&self, memory: Memory) -> Option<Pending<Memory>> {
        let pending = self.control.receive(memory, NOTE_BYTES, None);
        pending.map_err(|error| self.shared.publish(error)).ok()
    }

    /// Lets go of what has been sent.
    fn flush(&self) {
        let is_under_way = |pending: &mut Pending<Memory>| match pending.test() {
            Ok(sent) => sent.is_none(),
            Err(error) => {
                self.shared.publish(error);
                false
            }
        };
        self.state.borrow_mut().outbox.retain_mut(is_under_way);
    }

    fn tell_others(&self, note: &Note) {
        for rank in (0..self.shared.size).filter(|&rank| rank != self.shared.rank) {
            self.tell(rank, note);
        }
    }

    pub(super) fn tell(&self, rank: usize, note: &Note) {
        if rank == self.shared.rank {
            return self.hear(rank, note.clone());
        }
        let bytes = note.encode(self.shared.rank);
        let mut memory = Memory::new(bytes.len());
        memory.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        match self.control.send(memory, bytes.len(), rank) {
            Ok(pending) => self.state.borrow_mut().outbox.push(pending),
            Err(error) => {
                self.shared.publish(error);
            }
        }
    }

    fn hear(&self, sender: usize, note: Note) {
        match note {
            Note::Failure(failure) => self.shared.hear(failure),
            Note::Query { group } => {
                let entered = self.entered(group);
                self.tell(sender, &Note::Progress { group, entered });
            }
            Note::Progress { group, entered } => {
                self.state.borrow_mut().progress.insert((group, sender), entered);
            }
            Note::Left { group, departure } => {
                self.state.borrow_mut().departures.insert((group, sender), departure);
            }
            Note::Ready { group, size } => self.count_ready(sender, group, size),
            Note::Go { group } => self.create(group),
            Note::Bye => {
                self.state.borrow_mut().gone.insert(sender);
            }
        }
    }
}

/// The number by which the ranks know a group.
pub(super) fn hash(identity: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(identity.as_bytes())
}
