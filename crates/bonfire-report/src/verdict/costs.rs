//! What costs all ranks time.

use super::words::{any_of, bytes, percent};
use super::{Finding, Kind, Run};

/// Parts of the step from which on something is worth a word.
const COMMUNICATION: f64 = 0.10;
const DATA: f64 = 0.10;
const OPTIMIZER: f64 = 0.15;
const CHECKPOINT: f64 = 0.05;
const UNACCOUNTED: f64 = 0.10;

/// The least factor by which steps have to become longer, or a thing rarer, so that its part of the
/// step falls below a limit, if its cost stays: `share / factor < limit`.
pub(super) fn factor(share: f64, limit: f64) -> usize {
    // Rounded off: 0.3 / 0.1 is a little less than 3.
    (share / limit + 1e-9).floor() as usize + 1
}

pub(super) fn communication(run: &Run<'_>) -> Option<Finding> {
    let shares = run.ranks.iter().zip(&run.waits).map(|(rank, wait)| (rank.share(*wait), rank));
    let (share, rank) = shares.min_by(|one, other| one.0.total_cmp(&other.0))?;
    if share < COMMUNICATION {
        return None;
    }
    // The rank that waits least waits for no other, so that of all ranks its reductions tell best
    // how fast the link is.
    let rate = rank.bytes_sent as f64 / rank.comm_busy_s;
    let rate = if rate.is_finite() { format!(" at {}/s", bytes(rate)) } else { String::new() };
    let sent = match rank.bytes_sent {
        0 => String::new(),
        sent => format!(" ({} a step{rate})", bytes(rank.per_step(sent as f64))),
    };
    let mut remedies = vec![format!("a larger batch than {}", run.setting.batch_size)];
    if !run.setting.compression {
        remedies.push("bf16 compression (distributed.compression = \"bf16\")".to_owned());
    }
    remedies.push(accumulation(run, factor(share, COMMUNICATION)));
    if run.setting.machines > 1 {
        remedies.push("a faster network between the machines".to_owned());
    }
    let text = format!(
        "{} of the step waits for communication{sent}: try {}",
        percent(share),
        any_of(&remedies)
    );
    Some(Finding { kind: Kind::Communication, rank: None, share, text })
}

pub(super) fn data(run: &Run<'_>) -> Option<Finding> {
    let share = run.least_share(|rank| rank.data_s);
    if share < DATA {
        return None;
    }
    let workers = run.setting.loader_workers;
    // A loader that a step waits for makes one batch in the time of a step, with each of its
    // threads doing its part; without the wait a step would be shorter by `share`. Without threads
    // the wait is the making, which one thread does while the rest of a step goes on.
    let needed = match workers {
        0 => (share / (1.0 - share).max(0.1)).ceil() as usize,
        _ => (workers as f64 / (1.0 - share).max(0.1) - 1e-9).ceil() as usize,
    };
    let needed = needed.max(workers + 1);
    let idle = if run.setting.device_is_cpu { ", if the machine has idle cores" } else { "" };
    let mut remedies = vec![
        format!("more loader threads (data.workers = {needed}{idle})"),
        "cheaper transforms".to_owned(),
    ];
    if workers > 0 {
        remedies.push("more prefetched batches (data.prefetch_factor)".to_owned());
    }
    let text = format!("{} of the step waits for data: try {}", percent(share), any_of(&remedies));
    Some(Finding { kind: Kind::Data, rank: None, share, text })
}

pub(super) fn optimizer(run: &Run<'_>) -> Option<Finding> {
    let share = run.least_share(|rank| rank.optimizer_s);
    if share < OPTIMIZER {
        return None;
    }
    let mut remedies = vec![accumulation(run, factor(share, OPTIMIZER))];
    if run.setting.world_size > 1 {
        remedies.push("its state shared among the ranks (distributed.zero_stage = 1)".to_owned());
    }
    let text =
        format!("the optimizer takes {} of the step: try {}", percent(share), any_of(&remedies));
    Some(Finding { kind: Kind::Optimizer, rank: None, share, text })
}

pub(super) fn checkpoint(run: &Run<'_>) -> Option<Finding> {
    let share = run.most_share(|rank| rank.checkpoint_s);
    if share < CHECKPOINT {
        return None;
    }
    let text = format!(
        "checkpoints take {} of the time: save {} times as rarely (checkpoint.every_n_steps) or to \
         a faster disk",
        percent(share),
        factor(share, CHECKPOINT)
    );
    Some(Finding { kind: Kind::Checkpoint, rank: None, share, text })
}

/// Time outside the phases. What rank 0 does for all is often the reason, so the rank that has most
/// counts, except those which are called slow for it already.
pub(super) fn unaccounted(run: &Run<'_>, excepted: &[usize]) -> Option<Finding> {
    let ranks = run.ranks.iter().filter(|rank| !excepted.contains(&rank.rank));
    let shares = ranks.map(|rank| (rank.share(rank.unaccounted_s()), rank.rank));
    let over: Vec<(f64, usize)> = shares.filter(|(share, _)| *share >= UNACCOUNTED).collect();
    let (share, rank) = *over.iter().max_by(|one, other| one.0.total_cmp(&other.0))?;
    let rank = (over.len() == 1 && run.ranks.len() > 1).then_some(rank);
    let whose = rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
    let text = format!(
        "{} of the step{whose} is outside the measured phases: look at callbacks and logging \
         (train.log_every_n_steps)",
        percent(share)
    );
    Some(Finding { kind: Kind::Unaccounted, rank, share, text })
}

/// What is said when nothing costs much beside the model itself.
pub(super) fn compute(run: &Run<'_>) -> Finding {
    let mean = |of: &dyn Fn(&super::RankTimes) -> f64| {
        run.share(run.ranks.iter().map(of).sum::<f64>() / run.ranks.len().max(1) as f64)
    };
    let (forward, backward) = (mean(&|rank| rank.forward_s), mean(&|rank| rank.backward_s));
    let share = (forward + backward).min(1.0);
    let device = match (run.setting.device_is_cpu, run.setting.threads_per_rank) {
        (true, 1) => "the CPU (1 thread a rank)".to_owned(),
        (true, threads) => format!("the CPU ({threads} threads a rank)"),
        (false, _) => "the device".to_owned(),
    };
    let text = format!(
        "forward ({}) and backward ({}) take {} of the step, and nothing else stands out: {device} \
         is the limit",
        percent(forward),
        percent(backward),
        percent(share)
    );
    Finding { kind: Kind::ComputeBound, rank: None, share, text }
}

/// More micro-batches a step, by a factor to those there are.
fn accumulation(run: &Run<'_>, factor: usize) -> String {
    let number = run.setting.accumulate_grad_batches.max(1).saturating_mul(factor);
    format!("accumulation {number} (train.accumulate_grad_batches = {number})")
}
