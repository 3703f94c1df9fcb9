//! What the times of a run mean, in words, with a remedy.
//!
//! # How it is judged
//! Ranks are in lockstep: a step ends for all when the slowest has reduced its gradients. So their
//! totals are alike, and who is faster waits for communication:
//!
//! | what is slow | own work | waiting for communication |
//! |---|---|---|
//! | a rank | of that rank more than of the others | of the others much, of that rank hardly any |
//! | the link | alike | of every rank, also of the one that waits least |
//!
//! Hence what communication costs is what the rank that waits least waits; what another waits
//! beyond it, it waits for the slowest rank. In the same way data, optimizer and the like cost all
//! ranks what the fastest of them needs, and what one needs beyond the others is its own slowness.
//!
//! A slow rank that is not always the same one looks like a slow link: over many steps every rank
//! waits for every other.
//!
//! Checkpoints are apart from both: often one rank writes them while the others wait. They cost the
//! longest time of any rank, and neither is their writer called slow, nor the link because of those
//! who wait for it.
//!
//! ```
//! use bonfire_report::verdict::{RankTimes, Setting, judge};
//!
//! let rank = |rank, data_s, comm_wait_s| RankTimes {
//!     rank, steps: 100, total_s: 10.0, data_s, forward_s: 2.0, backward_s: 4.0, comm_wait_s,
//!     optimizer_s: 0.5, ..RankTimes::default()
//! };
//! let verdict = judge(&[rank(0, 0.4, 3.0), rank(1, 3.3, 0.1)], &Setting::default());
//! assert!(verdict.to_string().starts_with("rank 1 is 8.2 times slower in data"), "{verdict}");
//! ```

mod costs;
mod rank_times;
mod straggler;
#[cfg(test)]
mod tests;
mod words;

pub use rank_times::RankTimes;

use rank_times::share;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What of a run's setting decides which remedies are left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Ranks of the run.
    pub world_size: usize,
    /// Samples per rank and micro-batch.
    pub batch_size: usize,
    /// Micro-batches per optimizer step.
    pub accumulate_grad_batches: usize,
    /// Whether gradients travel compressed.
    pub compression: bool,
    /// Loader threads per rank; 0 loads on the training thread.
    pub loader_workers: usize,
    /// Whether the model is trained on CPUs.
    pub device_is_cpu: bool,
    /// Threads per rank that compute, on CPUs.
    pub threads_per_rank: usize,
    /// Machines of the run.
    pub machines: usize,
}

impl Default for Setting {
    /// One rank on a CPU with one thread, with the defaults of a run's configuration.
    fn default() -> Self {
        Self {
            world_size: 1,
            batch_size: 32,
            accumulate_grad_batches: 1,
            compression: false,
            loader_workers: 1,
            device_is_cpu: true,
            threads_per_rank: 1,
            machines: 1,
        }
    }
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A rank is slower than the others.
    Straggler,
    /// All ranks wait for gradients on their way.
    Communication,
    /// All ranks wait for samples.
    Data,
    /// The update of the parameters takes long.
    Optimizer,
    /// Saving takes long.
    Checkpoint,
    /// Much time lies outside of what is measured.
    Unaccounted,
    /// Nothing of the above: the device computes nearly all the time.
    ComputeBound,
}

/// Where time is lost, and what may help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about.
    pub kind: Kind,
    /// The rank that it is about, unless it is about all.
    pub rank: Option<usize>,
    /// The part of the step that is lost, from 0 to 1; of [`Kind::ComputeBound`] the part that
    /// computes.
    pub share: f64,
    /// One sentence.
    pub text: String,
}

/// All findings about a run, the one that costs most time first. [`Display`](fmt::Display) writes
/// each on a line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Without any, nothing was measured.
    pub findings: Vec<Finding>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.findings.is_empty() {
            return write!(f, "no step was measured");
        }
        let texts: Vec<&str> = self.findings.iter().map(|finding| finding.text.as_str()).collect();
        write!(f, "{}", texts.join("\n"))
    }
}

/// Says where the time of a run goes and what may help. Ranks come in any order; some may be
/// missing.
pub fn judge(ranks: &[RankTimes], setting: &Setting) -> Verdict {
    let run = Run::new(ranks, setting);
    // No time, or one that is no number.
    if !(run.total_s > 0.0 && run.total_s.is_finite()) {
        return Verdict::default();
    }
    let stragglers = straggler::find(&run);
    let excepted: Vec<usize> = straggler::outside(&stragglers).collect();
    let mut findings: Vec<Finding> =
        stragglers.into_iter().map(|straggler| straggler.finding(&run)).collect();
    findings.extend(costs::communication(&run));
    findings.extend(costs::data(&run));
    findings.extend(costs::optimizer(&run));
    findings.extend(costs::checkpoint(&run));
    findings.extend(costs::unaccounted(&run, &excepted));
    if findings.is_empty() {
        findings.push(costs::compute(&run));
    }
    findings.sort_by(|one, other| other.share.total_cmp(&one.share));
    Verdict { findings }
}

/// The times of a run and what follows from all of them together.
struct Run<'a> {
    ranks: &'a [RankTimes],
    setting: &'a Setting,
    /// What the measured steps took, the mean over ranks.
    total_s: f64,
    /// For each rank the time that it waited for communication, less the time in which it cannot
    /// but have waited for another's checkpoint.
    waits: Vec<f64>,
}

impl<'a> Run<'a> {
    fn new(ranks: &'a [RankTimes], setting: &'a Setting) -> Self {
        let total_s =
            ranks.iter().map(|rank| rank.total_s).sum::<f64>() / ranks.len().max(1) as f64;
        let saving = most(ranks.iter().map(|rank| rank.checkpoint_s));
        let wait = |rank: &RankTimes| (rank.comm_wait_s - (saving - rank.checkpoint_s)).max(0.0);
        Self { ranks, setting, total_s, waits: ranks.iter().map(wait).collect() }
    }

    /// What part of the measured steps a time is.
    fn share(&self, seconds: f64) -> f64 {
        share(seconds, self.total_s)
    }

    /// The least part of its time that a rank spends on something: what it costs all.
    fn least_share(&self, spent: impl Fn(&RankTimes) -> f64) -> f64 {
        self.ranks.iter().map(|rank| rank.share(spent(rank))).reduce(f64::min).unwrap_or(0.0)
    }

    /// The greatest part.
    fn most_share(&self, spent: impl Fn(&RankTimes) -> f64) -> f64 {
        most(self.ranks.iter().map(|rank| rank.share(spent(rank))))
    }
}

fn most(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}
