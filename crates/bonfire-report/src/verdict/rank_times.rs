use serde::{Deserialize, Serialize};

/// How long a rank did what in the steps that were measured, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Whose times they are.
    pub rank: usize,
    /// Optimizer steps that were measured.
    pub steps: u64,
    /// From the beginning of the first to the end of the last.
    pub total_s: f64,
    /// Waiting for batches, or making them.
    pub data_s: f64,
    /// Forward passes and losses.
    pub forward_s: f64,
    /// Backward passes.
    pub backward_s: f64,
    /// Waiting for reductions that were not done when they were needed.
    pub comm_wait_s: f64,
    /// Updates of the parameters.
    pub optimizer_s: f64,
    /// Saving, as far as training waited for it.
    pub checkpoint_s: f64,
    /// Time in which at least one reduction was on its way, waited for or not.
    pub comm_busy_s: f64,
    /// Bytes that this rank sent.
    pub bytes_sent: u64,
}

impl RankTimes {
    /// What this rank did by itself: neither waiting nor saving (see [`super`] why).
    pub(super) fn own_s(&self) -> f64 {
        (self.total_s - self.comm_wait_s - self.checkpoint_s).max(0.0)
    }

    /// What is left of the total beside all parts.
    pub(super) fn unaccounted_s(&self) -> f64 {
        let passes = self.forward_s + self.backward_s + self.optimizer_s;
        (self.own_s() - self.data_s - passes).max(0.0)
    }

    /// What part of this rank's time something is.
    pub(super) fn share(&self, seconds: f64) -> f64 {
        share(seconds, self.total_s)
    }

    /// What a step takes of a time.
    pub(super) fn per_step(&self, seconds: f64) -> f64 {
        seconds / self.steps.max(1) as f64
    }
}

/// A part of a whole, from 0 to 1; 0 if there is none.
pub(super) fn share(part: f64, whole: f64) -> f64 {
    let share = part / whole;
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}
