//! Images per second.

use std::time::{Duration, Instant};

/// Time that a loop gets to settle before it is measured.
const WARM_UP: Duration = Duration::from_secs(1);

/// Counts the images of a loop, from the end of the warm-up on.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    measured: Duration,
    begun: Option<Instant>,
    since: Option<Instant>,
    elapsed: Duration,
    images: u64,
}

impl Stopwatch {
    pub(crate) fn new(measured: Duration) -> Self {
        Self { measured, begun: None, since: None, elapsed: Duration::ZERO, images: 0 }
    }

    /// Counts the images of a step that has just ended; returns whether it was the last.
    pub(crate) fn step(&mut self, images: u64) -> bool {
        let now = Instant::now();
        let begun = *self.begun.get_or_insert(now);
        match self.since {
            None if now - begun >= WARM_UP => self.since = Some(now),
            None => {}
            Some(since) => {
                self.images += images;
                self.elapsed = now - since;
            }
        }
        self.elapsed >= self.measured
    }

    pub(crate) fn images_per_s(&self) -> f64 {
        self.images as f64 / self.elapsed.as_secs_f64()
    }
}
