use crate::utilization::{Usage, peak_memory_bytes};
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

/// Where a rank's time went in an interval of the training, and what it has done in it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct RankFigures {
    /// Training samples of this rank.
    pub samples: f64,
    /// Seconds of training.
    pub seconds: f64,
    /// Parts of them.
    pub share: TimeShare,
    /// Processor cores that its process has kept busy on average, validations included. Ranks that are
    /// threads share their process.
    pub cpu_cores: f64,
    /// Share of the time in which its device has computed, from 0 to 1, where that is known.
    pub device_utilization: Option<f64>,
    /// The most bytes of main memory that its process has had at a time, so far.
    pub peak_memory_bytes: u64,
}

impl RankFigures {
    /// Samples per second.
    pub fn samples_per_second(&self) -> f64 {
        per(self.samples, self.seconds)
    }

    /// Samples per second of the time in which this rank did not wait for others: all ranks go in step, and
    /// a slow one stands out by this.
    pub fn busy_samples_per_second(&self) -> f64 {
        per(self.samples, self.seconds * (1.0 - self.share.comm_wait))
    }

    /// The numbers that make it up, for the way over the ranks.
    pub(crate) fn to_words(self) -> [f64; Self::WORDS] {
        let TimeShare { data, forward, backward, comm_wait, optimizer } = self.share;
        let device = self.device_utilization.unwrap_or(UNKNOWN);
        let [cpu, memory] = [self.cpu_cores, self.peak_memory_bytes as f64];
        let [samples, seconds] = [self.samples, self.seconds];
        [samples, seconds, data, forward, backward, comm_wait, optimizer, cpu, device, memory]
    }

    /// Those of [`to_words`](Self::to_words).
    pub(crate) fn from_words(words: &[f64]) -> Self {
        let at = |index: usize| words.get(index).copied().unwrap_or(0.0);
        let [data, forward, backward, comm_wait, optimizer] = [2, 3, 4, 5, 6].map(at);
        let share = TimeShare { data, forward, backward, comm_wait, optimizer };
        Self {
            samples: at(0),
            seconds: at(1),
            share,
            cpu_cores: at(7),
            device_utilization: Some(at(8)).filter(|share| *share != UNKNOWN),
            peak_memory_bytes: at(9) as u64,
        }
    }

    pub(crate) const WORDS: usize = 10;

    /// The same with what was used meanwhile.
    pub(crate) fn with_usage(self, usage: Usage) -> Self {
        let Usage { cpu_cores, device } = usage;
        let peak_memory_bytes = peak_memory_bytes();
        Self { cpu_cores, device_utilization: device, peak_memory_bytes, ..self }
    }
}

/// A share that is not known.
const UNKNOWN: f64 = -1.0;

fn per(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

/// A part of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The last one that was begun, and its micro-batch at hand.
    number: u64,
    micro_batch: Option<u64>,
    /// Training samples of this rank.
    samples: u64,
    /// What parts, total and samples were when an interval was last taken.
    taken: ([Duration; 5], Duration, u64),
    /// What happened when, while a profile is made.
    notes: Option<Vec<Note>>,
}

/// Something that took time while a profile was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note {
    pub(crate) what: What,
    /// The optimizer step in or behind which it was.
    pub(crate) step: u64,
    /// The micro-batch, of what belongs to one.
    pub(crate) micro_batch: Option<u64>,
    /// Whether it is a part of the time of a step.
    pub(crate) within: bool,
    pub(crate) start: Instant,
    pub(crate) duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A whole step.
    Step,
    /// A part of a step.
    Part(Part),
    /// Reading the figures of steps.
    Figures,
    /// As far as training waited for it.
    Checkpoint,
}

impl What {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Part(part) => part.name(),
            Self::Figures => "figures",
            Self::Checkpoint => "checkpoint",
        }
    }
}

impl StepTimes {
    /// Runs `f` and counts its time.
    pub(crate) fn time<T>(&mut self, part: Part, f: impl FnOnce() -> T) -> T {
        let _range = range(part.name());
        let start = Instant::now();
        let result = f();
        let elapsed = start.elapsed();
        self.parts[part as usize] += elapsed;
        self.count(What::Part(part), start, elapsed);
        result
    }

    /// Runs `f`, which may wait for what steps have begun, and counts its time as theirs.
    pub(crate) fn wait<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = f();
        self.count(What::Figures, start, start.elapsed());
        result
    }

    fn count(&mut self, what: What, start: Instant, elapsed: Duration) {
        // The time of a step is counted whole.
        if self.step.is_none() {
            self.total += elapsed;
        }
        self.note(what, start, elapsed);
    }

    fn note(&mut self, what: What, start: Instant, duration: Duration) {
        if let Some(notes) = &mut self.notes {
            let within = self.step.is_some();
            let of_one = matches!(what, What::Part(Part::Data | Part::Forward | Part::Backward));
            let micro_batch = self.micro_batch.filter(|_| of_one);
            notes.push(Note { what, step: self.number, micro_batch, within, start, duration });
        }
    }

    pub(crate) fn begin_step(&mut self, number: u64) {
        self.number = number;
        self.step = Some(Instant::now());
    }

    pub(crate) fn begin_micro_batch(&mut self, number: usize) {
        self.micro_batch = Some(number as u64);
    }

    pub(crate) fn end_step(&mut self) {
        let Some(start) = self.step.take() else { return };
        let elapsed = start.elapsed();
        self.total += elapsed;
        self.note(What::Step, start, elapsed);
    }

    /// Notes that training has waited since `start` for a checkpoint.
    pub(crate) fn note_checkpoint(&mut self, start: Instant) {
        self.note(What::Checkpoint, start, start.elapsed());
    }

    /// Notes from now on what happens when.
    pub(crate) fn begin_notes(&mut self) {
        self.notes = Some(Vec::new());
    }

    /// Takes the notes, and makes no more.
    pub(crate) fn take_notes(&mut self) -> Vec<Note> {
        self.notes.take().unwrap_or_default()
    }

    pub(crate) fn total(&self) -> Duration {
        self.total
    }

    pub(crate) fn count_samples(&mut self, samples: usize) {
        self.samples += samples as u64;
    }

    /// Where the time has gone since this was last asked for.
    pub(crate) fn take_interval(&mut self) -> RankFigures {
        let now = (self.parts, self.total, self.samples);
        let (parts, total, samples) = std::mem::replace(&mut self.taken, now);
        let parts = std::array::from_fn(|part| self.parts[part].saturating_sub(parts[part]));
        figures(&parts, self.total.saturating_sub(total), self.samples - samples)
    }

    /// Where all of it has gone.
    pub(crate) fn figures(&self) -> RankFigures {
        figures(&self.parts, self.total, self.samples)
    }
}

fn figures(parts: &[Duration; 5], total: Duration, samples: u64) -> RankFigures {
    let seconds = total.as_secs_f64();
    let share = |part: Part| per(parts[part as usize].as_secs_f64(), seconds);
    let share = TimeShare {
        data: share(Part::Data),
        forward: share(Part::Forward),
        backward: share(Part::Backward),
        comm_wait: share(Part::CommWait),
        optimizer: share(Part::Optimizer),
    };
    RankFigures { samples: samples as f64, seconds, share, ..RankFigures::default() }
}
