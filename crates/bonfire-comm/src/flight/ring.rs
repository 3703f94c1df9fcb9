//! The memory of the flight recorder: a ring of entries and the progress of each group.

use std::panic::Location;
use std::sync::Arc;

use super::State;
use crate::{DType, Operation};

/// Entries that a recorder keeps, over all groups of its rank.
pub const CAPACITY: usize = 2000;

/// A group as its rank's recorder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupKey(usize);

/// A group and how far this rank has come in it. The counts outlive the entries in the ring.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) identity: Arc<str>,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) entered: u64,
    pub(super) finished: u64,
}

/// What is known of an operation when it is called.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) group: GroupKey,
    pub(super) operation: Operation,
    pub(super) dtype: DType,
    pub(super) count: usize,
    pub(super) site: &'static Location<'static>,
    pub(super) label: Option<Arc<str>>,
    pub(super) created: u64,
}

/// An entry; times are nanoseconds since the recorder began.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: u64,
    pub(super) asked: Asked,
    pub(super) state: State,
    pub(super) sequence: Option<u64>,
    pub(super) started: Option<u64>,
    pub(super) finished: Option<u64>,
    /// Nanoseconds that it took on a device.
    pub(super) on_device: Option<u64>,
    pub(super) error: Option<Box<str>>,
}

/// What a lock guards. `begin`, `start` and `finish` neither allocate nor block.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Vec<Slot>,
    next_id: u64,
    groups: Vec<Group>,
}

impl Ring {
    pub(super) fn new() -> Self {
        Self { slots: Vec::with_capacity(CAPACITY), next_id: 0, groups: Vec::new() }
    }

    pub(super) fn register(&mut self, identity: &str, rank: usize, world_size: usize) -> GroupKey {
        let identity = identity.into();
        self.groups.push(Group { identity, rank, world_size, entered: 0, finished: 0 });
        GroupKey(self.groups.len() - 1)
    }

    /// Enters an operation under the next number, which it returns, and drops the oldest entry.
    #[inline]
    pub(super) fn begin(&mut self, asked: Asked) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        if let Some(slot) = self.slots.get_mut(place(id)) {
            // Field by field: a whole slot would be put together elsewhere and copied.
            slot.id = id;
            slot.asked = asked;
            slot.state = State::Created;
            slot.sequence = None;
            slot.started = None;
            slot.finished = None;
            slot.on_device = None;
            slot.error = None;
        } else {
            self.slots.push(Slot {
                id,
                asked,
                state: State::Created,
                sequence: None,
                started: None,
                finished: None,
                on_device: None,
                error: None,
            });
        }
        id
    }

    /// Notes the start of entry `id`, unless it is known or the entry is gone. A batch of
    /// messages starts more than once; its first message counts.
    #[inline]
    pub(super) fn start(&mut self, id: u64, sequence: u64, now: u64) {
        let Some(slot) = slot(&mut self.slots, id) else { return };
        if slot.state != State::Created {
            return;
        }
        slot.state = State::Started;
        slot.sequence = Some(sequence);
        slot.started = Some(now);
        if !is_message(slot.asked.operation)
            && let Some(group) = self.groups.get_mut(slot.asked.group.0)
        {
            group.entered = group.entered.max(sequence + 1);
        }
    }

    /// Notes the time on a device of entry `id`, unless the entry is gone.
    pub(super) fn on_device(&mut self, id: u64, nanoseconds: u64) {
        if let Some(slot) = slot(&mut self.slots, id) {
            slot.on_device = Some(nanoseconds);
        }
    }

    /// Notes the end of entry `id`, unless it is known or the entry is gone.
    #[inline]
    pub(super) fn finish(&mut self, id: u64, error: Option<Box<str>>, now: u64) {
        let Some(slot) = slot(&mut self.slots, id) else { return };
        if slot.finished.is_some() {
            return;
        }
        slot.finished = Some(now);
        slot.state = if error.is_some() { State::Failed } else { State::Finished };
        slot.error = error;
        if slot.state == State::Finished
            && !is_message(slot.asked.operation)
            && let Some(group) = self.groups.get_mut(slot.asked.group.0)
        {
            // The engine of a single rank starts nothing.
            let sequence = slot.sequence.unwrap_or(group.finished);
            group.finished = group.finished.max(sequence + 1);
            group.entered = group.entered.max(group.finished);
        }
    }

    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub(super) fn group(&self, key: GroupKey) -> Option<&Group> {
        self.groups.get(key.0)
    }

    /// Returns the entries, oldest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Slot> {
        let oldest = if self.evicted() == 0 { 0 } else { place(self.next_id) };
        let (newer, older) = self.slots.split_at(oldest);
        older.iter().chain(newer)
    }

    /// Returns how many operations there were.
    pub(super) fn num_calls(&self) -> u64 {
        self.next_id
    }

    /// Returns how many entries are gone.
    pub(super) fn evicted(&self) -> u64 {
        self.next_id - self.slots.len() as u64
    }
}

/// Whether sequence numbers of the operation count per peer, not per group.
fn is_message(operation: Operation) -> bool {
    matches!(operation, Operation::Send { .. } | Operation::Recv { .. })
}

fn place(id: u64) -> usize {
    (id % CAPACITY as u64) as usize
}

fn slot(slots: &mut [Slot], id: u64) -> Option<&mut Slot> {
    slots.get_mut(place(id)).filter(|slot| slot.id == id)
}
