//! A close look at some steps of a run: when each rank did what, and what that means.
//!
//! While it is made, the times that are taken anyway are noted, and after each step the flight recorder is
//! asked for the collectives that have ended. At its end all ranks send their notes to rank 0, on whose
//! clock they are merged.

mod clock;
mod gather;
mod spans;

use crate::TrainError;
use crate::learnable::Learnable;
use crate::run::Run;
use bonfire_comm::flight::Entry;
use bonfire_parallel::Compression;
use bonfire_report::trace::{self, RankTrace};
use bonfire_report::verdict::{RankTimes, Setting, Verdict, judge};
use gather::gather_bytes;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// Which steps are looked at closely, and where the traces go.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileConfig {
    /// Optimizer steps, counted from 0.
    pub steps: Range<u64>,
    /// Folder of the traces and the verdict, which rank 0 makes. Default none: there is only
    /// [`FitReport::verdict`](crate::FitReport::verdict).
    pub folder: Option<PathBuf>,
    /// Loader threads of each rank, which the verdict may find too few. Default 1.
    pub loader_workers: usize,
}

impl ProfileConfig {
    /// Looks at some steps.
    pub fn new(steps: Range<u64>) -> Self {
        Self { steps, folder: None, loader_workers: 1 }
    }

    /// Writes traces into a folder.
    pub fn with_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..self }
    }
}

/// A profile that is being made.
pub(crate) struct Profiling {
    /// The same moment on this rank's two clocks.
    anchor: (Instant, SystemTime),
    first_step: u64,
    bytes_sent: u64,
    /// Collectives that have ended.
    entries: Vec<Entry>,
    /// Number of the first that had not, when they were last looked at.
    next_entry: u64,
}

impl<M: Learnable> Run<'_, M> {
    /// Begins the profile if its steps begin.
    pub(crate) fn begin_profile(&mut self) {
        let Some(config) = &self.config.profile else { return };
        if self.profiling.is_some() || self.profiled || !config.steps.contains(&self.position.step)
        {
            return;
        }
        self.times.begin_notes();
        self.profiling = Some(Profiling {
            anchor: (Instant::now(), SystemTime::now()),
            first_step: self.position.step,
            bytes_sent: self.parallel.bytes_sent(),
            entries: Vec::new(),
            next_entry: self.control.flight_recorder().num_calls(),
        });
    }

    /// Takes what has ended of a step, and ends the profile if it was the last one.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn profile_step(&mut self) -> Result<(), TrainError> {
        let Some(profiling) = &mut self.profiling else { return Ok(()) };
        profiling.take_entries(self.control.flight_recorder());
        let last = self.config.profile.as_ref().map(|config| config.steps.end);
        match last.is_some_and(|end| self.position.step >= end) {
            true => self.end_profile(),
            false => Ok(()),
        }
    }

    /// Ends the profile, if one is being made, and judges what it shows.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn end_profile(&mut self) -> Result<(), TrainError> {
        if self.profiling.is_none() {
            return Ok(());
        }
        // On a device the last step may still be under way.
        self.conclude()?;
        let Some(mut profiling) = self.profiling.take() else { return Ok(()) };
        profiling.take_entries(self.control.flight_recorder());
        self.profiled = true;
        let notes = self.times.take_notes();
        let rank = self.control.rank();
        let steps = self.position.step - profiling.first_step;
        let bytes_sent = self.parallel.bytes_sent().saturating_sub(profiling.bytes_sent);
        let trace = RankTrace { rank, spans: profiling.spans(&notes) };
        let times = profiling.times(rank, steps, bytes_sent, &notes);
        let offsets = clock::offsets(&self.control)?;
        let encoded = serde_json::to_vec(&trace).map_err(|error| unreadable(&error))?;
        let all = gather_bytes(&self.control, &encoded)?;
        let times = gather_times(&self.control, &times)?;
        let verdict = judge(&times, &self.setting());
        if let (Some(config), 0) = (&self.config.profile, rank)
            && let Some(folder) = &config.folder
        {
            let traces = read_traces(&all, &offsets)?;
            write(folder, &traces, &verdict)
                .map_err(TrainError::io("writing the profile into", folder))?;
        }
        self.verdict = Some(verdict);
        Ok(())
    }

    /// Tells at the end of a run of a profile that was asked for and never begun.
    pub(crate) fn miss_profile(&self) {
        if let Some(ProfileConfig { steps, .. }) = &self.config.profile
            && !self.profiled
            && self.control.rank() == 0
        {
            let (first, last) = (self.first_step, self.position.step);
            tracing::warn!(
                "no profile: the run took steps {first} to {last}, and profile.steps are {} to {}",
                steps.start,
                steps.end
            );
        }
    }

    fn setting(&self) -> Setting {
        let config = self.config;
        let loader_workers = config.profile.as_ref().map_or(1, |profile| profile.loader_workers);
        Setting {
            world_size: self.control.world_size(),
            batch_size: self.batch_size,
            accumulate_grad_batches: config.accumulate_grad_batches,
            compression: config.parallel.compression != Compression::None,
            loader_workers,
            device_is_cpu: self.device_is_cpu(),
            threads_per_rank: rayon::current_num_threads(),
            machines: self.control.num_machines(),
        }
    }

    fn device_is_cpu(&self) -> bool {
        self.device == burn::tensor::Device::flex()
    }
}

/// The times of all ranks, on every rank.
fn gather_times(
    group: &bonfire_comm::ProcessGroup,
    own: &RankTimes,
) -> Result<Vec<RankTimes>, TrainError> {
    let encoded = serde_json::to_vec(own).map_err(|error| unreadable(&error))?;
    let all = group.all_gather_bytes(&encoded)?;
    let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(|error| unreadable(&error));
    all.iter().map(read).collect()
}

/// Reads what the ranks have sent, and turns their clocks to that of rank 0.
fn read_traces(all: &[Vec<u8>], offsets: &[i64]) -> Result<Vec<RankTrace>, TrainError> {
    let read = |(bytes, offset): (&Vec<u8>, &i64)| {
        let mut trace: RankTrace =
            serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
        trace.spans.iter_mut().for_each(|span| span.start_ns -= offset);
        Ok::<_, TrainError>(trace)
    };
    all.iter().zip(offsets).map(read).collect()
}

fn unreadable(error: &serde_json::Error) -> TrainError {
    TrainError::ReadMetric { reason: format!("a profile: {error}") }
}

/// Writes a trace for each rank and one of all, and the verdict.
fn write(folder: &Path, traces: &[RankTrace], verdict: &Verdict) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let file = |name: &str, traces: &[RankTrace]| {
        let mut out = BufWriter::new(File::create(folder.join(name))?);
        trace::write(&mut out, traces)?;
        out.flush()
    };
    for trace in traces {
        file(&format!("rank{}.trace.json", trace.rank), std::slice::from_ref(trace))?;
    }
    file("all.trace.json", traces)?;
    let verdict = serde_json::to_vec_pretty(verdict)?;
    std::fs::write(folder.join("verdict.json"), verdict)
}
