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
    /// Since when a step is under way.
    step: Option<Instant>,
}

impl StepTimes {
    /// Runs `f` and counts its time.
    pub(crate) fn time<T>(&mut self, part: Part, f: impl FnOnce() -> T) -> T {
        let _range = range(part.name());
        let start = Instant::now();
        let result = self.wait(f);
        self.parts[part as usize] += start.elapsed();
        result
    }

    /// Runs `f`, which may wait for what steps have begun, and counts its time as theirs.
    pub(crate) fn wait<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = f();
        // The time of a step is counted whole.
        if self.step.is_none() {
            self.total += start.elapsed();
        }
        result
    }

    pub(crate) fn begin_step(&mut self) {
        self.step = Some(Instant::now());
    }

    pub(crate) fn end_step(&mut self) {
        self.total += self.step.take().map_or(Duration::ZERO, |start| start.elapsed());
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
