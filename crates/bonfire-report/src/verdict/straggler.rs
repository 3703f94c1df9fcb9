//! Ranks that the others wait for.

use super::words::{percent, seconds};
use super::{Finding, Kind, RankTimes, Run};

/// A rank is slow if its own work takes this many times as long as the others'.
const LEAST_RATIO: f64 = 1.15;
/// Part of the step that must be lost to it.
const LEAST_SHARE: f64 = 0.05;
/// A greater ratio of phases means that the others hardly have the phase, and says nothing.
const MOST_RATIO: f64 = 100.0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Data,
    Forward,
    Backward,
    Optimizer,
    /// Callbacks, logging, and whatever else is not measured.
    Outside,
}

impl Phase {
    const ALL: [Self; 5] =
        [Self::Data, Self::Forward, Self::Backward, Self::Optimizer, Self::Outside];

    fn of(self, rank: &RankTimes) -> f64 {
        match self {
            Self::Data => rank.data_s,
            Self::Forward => rank.forward_s,
            Self::Backward => rank.backward_s,
            Self::Optimizer => rank.optimizer_s,
            Self::Outside => rank.unaccounted_s(),
        }
    }

    fn place(self) -> &'static str {
        match self {
            Self::Data => "in data",
            Self::Forward => "in forward",
            Self::Backward => "in backward",
            Self::Optimizer => "in the optimizer",
            Self::Outside => "outside the measured phases",
        }
    }

    fn remedy(self, device_is_cpu: bool) -> &'static str {
        match (self, device_is_cpu) {
            (Self::Data, _) => {
                "look at the loader's workers, the disk and the cost of transforms on its machine"
            }
            (Self::Forward | Self::Backward, true) => {
                "look for another program on its machine, thermal throttling, cores that it is \
                 pinned to together with another rank, and samples larger than the others'"
            }
            (Self::Forward | Self::Backward, false) => {
                "look for another program on its device or machine, thermal throttling, and \
                 samples larger than the others'"
            }
            (Self::Optimizer, _) => {
                "look for another program on its machine, and whether it has more parameters to \
                 update than the others"
            }
            (Self::Outside, _) => "look at the callbacks and the logging that only it has to do",
        }
    }
}

/// A slow rank and the phase in which it is slowest.
pub(super) struct Straggler {
    rank: usize,
    phase: Phase,
    /// Of the step.
    share: f64,
    /// What the phase takes a step, and what it takes the others, in seconds.
    takes: (f64, f64),
}

/// Finds the slow ranks. Each is held against the median of the others, so that two slow ranks of
/// four do not hide each other.
pub(super) fn find(run: &Run<'_>) -> Vec<Straggler> {
    let ranks = run.ranks.iter().enumerate();
    ranks.filter_map(|(index, rank)| judge(run, index, rank)).collect()
}

/// The ranks that are slow outside the measured phases.
pub(super) fn outside(stragglers: &[Straggler]) -> impl Iterator<Item = usize> {
    let outside = stragglers.iter().filter(|straggler| straggler.phase == Phase::Outside);
    outside.map(|straggler| straggler.rank)
}

fn judge(run: &Run<'_>, index: usize, rank: &RankTimes) -> Option<Straggler> {
    let others = |of: &dyn Fn(usize, &RankTimes) -> f64| {
        let others = run.ranks.iter().enumerate().filter(|(other, _)| *other != index);
        median(others.map(|(other, times)| of(other, times)).collect())
    };
    let wait = |index: usize| run.waits.get(index).copied().unwrap_or(0.0);
    let own = others(&|_, other| other.own_s())?;
    // In lockstep one is the other. If the ranks' totals differ, they are not, and what is lost is
    // what is both more work and waited for.
    let excess = rank.own_s() - own;
    let waited = others(&|other, _| wait(other))? - wait(index);
    let share = run.share(excess.min(waited));
    if rank.own_s() < LEAST_RATIO * own || share < LEAST_SHARE {
        return None;
    }
    let usual = |phase: Phase| others(&|_, other| phase.of(other)).unwrap_or(0.0);
    let phases = Phase::ALL.map(|phase| (phase, phase.of(rank), usual(phase)));
    let (phase, takes, usual) =
        phases.into_iter().max_by(|one, other| (one.1 - one.2).total_cmp(&(other.1 - other.2)))?;
    let takes = (rank.per_step(takes), rank.per_step(usual));
    Some(Straggler { rank: rank.rank, phase, share, takes })
}

impl Straggler {
    pub(super) fn finding(&self, run: &Run<'_>) -> Finding {
        let Self { rank, phase, share, takes: (takes, usual) } = *self;
        let ratio = takes / usual;
        let times = if ratio < MOST_RATIO { format!("{ratio:.1} times ") } else { String::new() };
        let wait = if run.ranks.len() > 2 { "the others wait" } else { "the other rank waits" };
        let text = format!(
            "rank {rank} is {times}slower {}: {} a step instead of {}, {wait} {} of the step for \
             it; {}",
            phase.place(),
            seconds(takes),
            seconds(usual),
            percent(share),
            phase.remedy(run.setting.device_is_cpu)
        );
        Finding { kind: Kind::Straggler, rank: Some(rank), share, text }
    }
}

/// The middle value, or the mean of the two in the middle; `None` of none.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some((lower + upper) / 2.0)
}
