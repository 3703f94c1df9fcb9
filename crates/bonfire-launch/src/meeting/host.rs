//! The host of the meeting: gathers nodes, says who forms an attempt, and notices who is lost.

use super::card::{Card, Over, Verdict, arrange, check};
use super::{Keys, MeetingConfig, read, write};
use bonfire_comm::{CommError, Store, StoreOptions, StoreServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks at the store.
const LOOK: Duration = Duration::from_millis(20);
/// Time that the host gives the others to read how the run has ended.
const LINGER: Duration = Duration::from_secs(5);

/// The store of the run and the thread that leads the meeting in it.
pub(crate) struct Host {
    leader: Option<JoinHandle<()>>,
    ends: Arc<AtomicBool>,
    store: Store,
    id: u64,
    // Dropped last.
    _server: StoreServer,
}

impl Host {
    pub(crate) fn start(
        server: StoreServer,
        options: &StoreOptions,
        config: MeetingConfig,
        id: u64,
    ) -> Result<Self, CommError> {
        let connect = || {
            let (address, timeout) = (server.address(), Duration::from_secs(10));
            let ip = match address.ip() {
                ip if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
                ip => ip,
            };
            Store::connect(&ip.to_string(), address.port(), options, timeout)
        };
        let ends = Arc::new(AtomicBool::new(false));
        let leader = Leader { store: connect()?, config, ends: ends.clone() };
        let store = connect()?;
        let thread = std::thread::Builder::new().name("rendezvous".into());
        let leader = thread
            .spawn(move || {
                if let Err(error) = leader.lead() {
                    tracing::warn!("the rendezvous cannot go on: {error}");
                }
            })
            .map_err(|error| CommError::System {
                what: "start the thread of the rendezvous".into(),
                detail: error.to_string(),
            })?;
        Ok(Self { leader: Some(leader), ends, store, id, _server: server })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nothing is formed any more. The others may not have read yet how the run has ended: they say
        // that they have by leaving.
        self.ends.store(true, Ordering::Release);
        let limit = Instant::now() + LINGER;
        let others = |store: &Store| -> Result<bool, CommError> {
            let arrived = store.try_get(Keys::ARRIVED)?.map_or(0, super::counter);
            let mut ids = (1..=arrived).filter(|id| *id != self.id);
            Ok(ids.any(|id| matches!(store.try_get(&Keys::alive(id)), Ok(Some(_)))))
        };
        while Instant::now() < limit && matches!(others(&self.store), Ok(true)) {
            std::thread::sleep(LOOK);
        }
        if let Some(leader) = self.leader.take() {
            drop(leader.join());
        }
    }
}

struct Leader {
    store: Store,
    config: MeetingConfig,
    ends: Arc<AtomicBool>,
}

impl Leader {
    /// Leads one attempt after the other, until the host leaves.
    fn lead(&self) -> Result<(), CommError> {
        let mut before = Vec::new();
        for attempt in 0u32.. {
            self.store.set(Keys::ATTEMPT, &attempt.to_le_bytes())?;
            let verdict = self.gather(attempt, &before);
            let verdict = verdict.inspect_err(|error| self.give_up(attempt, error))?;
            write(&self.store, &Keys::verdict(attempt), &verdict)?;
            let Verdict::Formed(cards) = verdict else { return Ok(()) };
            let over = self.watch(attempt, &cards);
            let over = over.inspect_err(|error| self.give_up(attempt + 1, error))?;
            if matches!(over, None | Some(Over::Finished | Over::Stopped { .. })) {
                let ended = Verdict::Refused("the run has ended".to_owned());
                return write(&self.store, &Keys::verdict(attempt + 1), &ended);
            }
            before = cards;
        }
        Ok(())
    }

    /// Says that an attempt will not be formed: nobody may wait for a verdict that does not come.
    fn give_up(&self, attempt: u32, error: &CommError) {
        let reason = format!("the rendezvous cannot go on: {error}");
        // Where the store is gone, those who wait see that themselves.
        drop(write(&self.store, &Keys::verdict(attempt), &Verdict::Refused(reason)));
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    fn is_alive(&self, card: &Card) -> Result<bool, CommError> {
        Ok(self.store.try_get(&Keys::alive(card.id))?.is_some())
    }

    /// The nodes that have come to an attempt and are still there.
    fn cards(&self, attempt: u32) -> Result<Vec<Card>, CommError> {
        let count = self.store.try_get(&Keys::count(attempt))?.map_or(0, super::counter);
        let mut cards = Vec::new();
        for number in 1..=count {
            if let Some(card) = read::<Card>(&self.store, &Keys::card(attempt, number))?
                && self.is_alive(&card)?
            {
                cards.push(card);
            }
        }
        Ok(cards)
    }

    /// Those of the cards that fit together; the others are told why they do not. Nodes that were together
    /// before go first, then the first that came.
    fn fitting(&self, mut cards: Vec<Card>, before: &[Card]) -> Result<Vec<Card>, CommError> {
        cards.sort_by_key(|card| !before.iter().any(|old| old.id == card.id));
        let mut fitting = Vec::with_capacity(cards.len());
        for card in cards {
            match check(&card, &fitting, self.config.nodes) {
                Ok(()) => fitting.push(card),
                Err(reason) => {
                    tracing::warn!("a node is refused: {reason}");
                    self.store.set(&Keys::refused(card.id), reason.as_bytes())?;
                    self.store.delete(&Keys::alive(card.id))?;
                }
            }
        }
        Ok(fitting)
    }

    /// Waits until the nodes of an attempt are there.
    fn gather(&self, attempt: u32, before: &[Card]) -> Result<Verdict, CommError> {
        let MeetingConfig { nodes, join_timeout, last_call, .. } = self.config;
        let start = Instant::now();
        let mut last_call_ends = None;
        let mut seen = 0;
        loop {
            if self.ends() {
                return Ok(Verdict::Refused("the run has ended".into()));
            }
            let cards = self.fitting(self.cards(attempt)?, before)?;
            if cards.len() != seen {
                if cards.len() < nodes.min {
                    tracing::info!("{} of {} nodes have come", cards.len(), nodes.min);
                }
                seen = cards.len();
                last_call_ends = (seen >= nodes.min).then(|| Instant::now() + last_call);
            }
            let is_over = last_call_ends.is_some_and(|end| Instant::now() >= end);
            if seen >= nodes.max || is_over {
                return Ok(Verdict::Formed(arrange(cards, before, nodes.max)));
            }
            if start.elapsed() >= join_timeout && seen < nodes.min {
                return Ok(Verdict::Refused(too_few(&cards, nodes.min, join_timeout)));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until an attempt is over; `None` when the host leaves.
    fn watch(&self, attempt: u32, cards: &[Card]) -> Result<Option<Over>, CommError> {
        loop {
            if let Some(over) = read(&self.store, &Keys::over(attempt))? {
                return Ok(Some(over));
            }
            if self.ends() {
                return Ok(None);
            }
            if let Some(over) = self.find_end(attempt, cards)? {
                super::end(&self.store, attempt, &over)?;
                continue;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The nodes that have come to the attempt after the one at hand and are not part of it.
    fn newcomers(&self, attempt: u32, cards: &[Card]) -> Result<Vec<Card>, CommError> {
        let mut coming = self.cards(attempt + 1)?;
        coming.retain(|card| !cards.iter().any(|old| old.id == card.id));
        Ok(coming)
    }

    fn find_end(&self, attempt: u32, cards: &[Card]) -> Result<Option<Over>, CommError> {
        let mut all_done = true;
        for (node, card) in cards.iter().enumerate() {
            let is_done = self.store.try_get(&Keys::done(attempt, card.id))?.is_some();
            if !is_done && !self.is_alive(card)? {
                return Ok(Some(Over::Lost { node, machine: card.machine.clone() }));
            }
            all_done &= is_done;
        }
        if all_done {
            return Ok(Some(Over::Finished));
        }
        // Refused before it could make anybody start again.
        let coming =
            self.fitting([cards.to_vec(), self.newcomers(attempt, cards)?].concat(), cards)?;
        let has_room = cards.len() < self.config.nodes.max;
        let waits = has_room && coming.len() > cards.len();
        Ok(waits.then_some(Over::Grows))
    }
}

fn too_few(cards: &[Card], min: usize, waited: Duration) -> String {
    let given: Vec<usize> = cards.iter().filter_map(|card| card.node_rank).collect();
    let missing: Vec<String> =
        (0..min).filter(|rank| !given.contains(rank)).map(|rank| rank.to_string()).collect();
    let which = match given.is_empty() {
        true => String::new(),
        false => format!("; missing: --node-rank {}", missing.join(", ")),
    };
    format!(
        "{} of {min} nodes came within {waited:?}{which}; check that the others were started with the same \
         address and --rdzv-id, and that no firewall lies between",
        cards.len()
    )
}
