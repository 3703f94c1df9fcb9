//! Images per second.

use crate::turns::Pace;
use std::sync::{Arc, Mutex, PoisonError};
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

    pub(crate) fn images_per_s(&self) -> f64 {
        self.images as f64 / self.elapsed.as_secs_f64()
    }
}

impl Pace for Stopwatch {
    fn step(&mut self, images: u64) -> bool {
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
}

impl Pace for Arc<Mutex<Stopwatch>> {
    fn step(&mut self, images: u64) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).step(images)
    }
}
