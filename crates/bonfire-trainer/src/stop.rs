use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a run to stop at the next step boundary, with a checkpoint.
///
/// All ranks stop at the same step as soon as one of them is asked.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Makes a flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wraps a flag that a signal handler sets.
    pub fn from_atomic(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Asks the run to stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the run was asked to stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
