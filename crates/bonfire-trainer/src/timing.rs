use bonfire_comm::range;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Parts of the training time, each as a share of the whole between 0 and 1.
///
/// What is missing to 1 went into metrics, callbacks and printing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TimeShare {
    /// Waiting for batches.
    pub data: f64,
    /// Forward passes.
    pub forward: f64,
    /// Backward passes, with the copying of gradients into buckets.
    pub backward: f64,
    /// Waiting for reductions that backward passes did not hide.
    pub comm_wait: f64,
    /// Optimizer steps.
    pub optimizer: f64,
}

/// A part of a training step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    Data,
    Forward,
    Backward,
    CommWait,
    Optimizer,
}

impl Part {
    /// What profilers call it.
    fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::CommWait => "wait for gradients",
            Self::Optimizer => "optimizer",
        }
    }
}

/// Time spent in each part of the training steps.
#[derive(Debug, Default)]
pub(crate) struct StepTimes {
    parts: [Duration; 5],
    total: Duration,
}

impl StepTimes {
    /// Runs `f` and counts its time.
    pub(crate) fn time<T>(&mut self, part: Part, f: impl FnOnce() -> T) -> T {
        let _range = range(part.name());
        let start = Instant::now();
        let result = f();
        self.parts[part as usize] += start.elapsed();
        result
    }

    /// Counts the whole time of training steps.
    pub(crate) fn add_total(&mut self, time: Duration) {
        self.total += time;
    }

    pub(crate) fn total(&self) -> Duration {
        self.total
    }

    pub(crate) fn share(&self) -> TimeShare {
        let total = self.total.as_secs_f64();
        let share = |part: Part| {
            if total > 0.0 { self.parts[part as usize].as_secs_f64() / total } else { 0.0 }
        };
        TimeShare {
            data: share(Part::Data),
            forward: share(Part::Forward),
            backward: share(Part::Backward),
            comm_wait: share(Part::CommWait),
            optimizer: share(Part::Optimizer),
        }
    }
}
