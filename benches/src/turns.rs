//! Two loops that run in turns of some milliseconds, so that what else the machine does hits both alike.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Turns that a loop gets to settle before it is measured.
const WARM_UP: u64 = 8;

/// What a loop asks after every step.
pub(crate) trait Pace: Send {
    /// Counts the images of a step that has just ended; returns whether it was the last.
    fn step(&mut self, images: u64) -> bool;
}

/// Seconds of the turns of both loops, pair by pair.
#[derive(Debug, Default, serde::Serialize)]
pub(crate) struct Pairs {
    base: Vec<f64>,
    other: Vec<f64>,
}

/// Which loop a turn is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Base,
    Other,
}

/// The machine, of which one loop has the use at a time.
pub(crate) struct Turns {
    state: Mutex<State>,
    passed: Condvar,
}

struct State {
    /// Whose turn it is; everybody's once a loop has ended.
    side: Option<Side>,
    pairs: Pairs,
}

impl Turns {
    pub(crate) fn new() -> Arc<Self> {
        let state = State { side: Some(Side::Base), pairs: Pairs::default() };
        Arc::new(Self { state: Mutex::new(state), passed: Condvar::new() })
    }

    /// What was measured.
    pub(crate) fn take(&self) -> Pairs {
        let mut pairs = std::mem::take(&mut self.lock().pairs);
        let len = pairs.base.len().min(pairs.other.len());
        pairs.base.truncate(len);
        pairs.other.truncate(len);
        pairs
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, side: Side) {
        let free = |state: &mut State| state.side.is_some_and(|turn| turn != side);
        drop(self.passed.wait_while(self.lock(), free));
    }
}

/// A loop's part in the turns. The first step of a turn finds the caches cold and is not measured.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    side: Side,
    /// Steps of a turn, with the first.
    steps: u64,
    done: u64,
    begun: Instant,
    /// Turns that are still left out.
    warm_up: u64,
    /// How long to measure, both loops together, and since when.
    measured: Duration,
    since: Option<Instant>,
}

impl Turn {
    /// Waits until it is this loop's turn.
    pub(crate) fn new(turns: Arc<Turns>, side: Side, steps: u64, measured: Duration) -> Self {
        turns.wait_for(side);
        let begun = Instant::now();
        Self { turns, side, steps, done: 0, begun, warm_up: WARM_UP, measured, since: None }
    }

    /// Passes the machine on, and waits to get it back.
    fn pass(&self, seconds: Option<f64>) {
        let mut state = self.turns.lock();
        // After the end of the other loop nothing is left to compare with.
        if state.side.is_some() {
            let (times, next) = match self.side {
                Side::Base => (&mut state.pairs.base, Side::Other),
                Side::Other => (&mut state.pairs.other, Side::Base),
            };
            times.extend(seconds);
            state.side = Some(next);
        }
        drop(state);
        self.turns.passed.notify_all();
        self.turns.wait_for(self.side);
    }
}

impl Pace for Turn {
    fn step(&mut self, _images: u64) -> bool {
        let now = Instant::now();
        self.done += 1;
        if self.done == 1 {
            self.begun = now;
        }
        if self.done == self.steps {
            self.done = 0;
            let measures = self.warm_up == 0;
            self.warm_up = self.warm_up.saturating_sub(1);
            if measures {
                self.since.get_or_insert(now);
            }
            self.pass(measures.then(|| (now - self.begun).as_secs_f64()));
        }
        self.since.is_some_and(|since| since.elapsed() >= self.measured)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.lock().side = None;
        self.turns.passed.notify_all();
    }
}
