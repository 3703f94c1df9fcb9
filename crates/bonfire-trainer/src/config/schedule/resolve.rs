//! From the section `[schedule]` to a plan: defaults, limits, and keys that go together.

use super::scaling::{LrScaling, ScalingRule};
use super::{Course, OneCycle, ReduceOnPlateau, SchedulePlan, Warmup, WarmupLength, WarmupStart};
use crate::config::plan::Budget;
use crate::config::resolve::Resolver;
use crate::config::sections::{
    AnnealStrategy, PlateauMode, ScheduleKind, ScheduleSection, StepUnit, ThresholdMode,
    WarmupStartKind,
};

/// What a schedule depends on in other sections.
pub(in crate::config) struct Surroundings {
    /// The optimizer's rate, before scaling.
    pub(in crate::config) lr: f64,
    pub(in crate::config) global_batch_size: usize,
    pub(in crate::config) budget: Budget,
    pub(in crate::config) check_val_every_n_epochs: u64,
}

/// Fills in the defaults and checks the limits.
pub(in crate::config) fn resolve(
    section: &ScheduleSection,
    around: &Surroundings,
    resolver: &mut Resolver<'_>,
) -> SchedulePlan {
    let kind = section.kind.unwrap_or(ScheduleKind::Constant);
    reject_foreign(section, kind, resolver);
    let scaling = scaling(section, around.global_batch_size, resolver);
    let lr = around.lr * scaling.factor();
    SchedulePlan {
        scaling,
        warmup: warmup(section, around.budget, resolver),
        course: match kind {
            ScheduleKind::Constant => Course::Constant,
            ScheduleKind::Step => step(section, resolver),
            ScheduleKind::MultiStep => multi_step(section, resolver),
            ScheduleKind::Cosine => Course::Cosine { min_lr: min_lr(section, lr, resolver) },
            ScheduleKind::Polynomial => Course::Polynomial {
                power: resolver.above_zero("schedule.power", section.power.unwrap_or(1.0)),
                min_lr: min_lr(section, lr, resolver),
            },
            ScheduleKind::OneCycle => one_cycle(section, resolver),
            ScheduleKind::ReduceOnPlateau => plateau(section, lr, around, resolver),
        },
        swa: None,
    }
}

fn scaling(
    section: &ScheduleSection,
    global_batch_size: usize,
    resolver: &mut Resolver<'_>,
) -> LrScaling {
    let rule = section.scaling.unwrap_or(ScalingRule::None);
    let key = "schedule.base_batch_size";
    let (word, base_batch_size) = match (rule, section.base_batch_size) {
        (ScalingRule::Linear, base) => ("linear", base),
        (ScalingRule::Sqrt, base) => ("sqrt", base),
        (rule, base) => {
            if base.is_some() {
                let message = format!(
                    "{key} is a key of scaling \"linear\" and \"sqrt\"; set schedule.scaling to \
                     one of them, or remove it"
                );
                resolver.reject(key, message);
            }
            return match rule {
                ScalingRule::Factor(factor) => {
                    LrScaling::Factor(resolver.above_zero("schedule.scaling", factor))
                }
                _ => LrScaling::None,
            };
        }
    };
    let Some(base_batch_size) = base_batch_size else {
        let message = format!(
            "{key} is missing: set it to the global batch size that optimizer.lr was chosen for, \
             which scaling \"{word}\" starts from"
        );
        resolver.reject(key, message);
        return LrScaling::None;
    };
    if base_batch_size == 0 {
        resolver.check(key, base_batch_size, false, "must be 1 or more");
        return LrScaling::None;
    }
    match rule {
        ScalingRule::Sqrt => LrScaling::Sqrt { global_batch_size, base_batch_size },
        _ => LrScaling::Linear { global_batch_size, base_batch_size },
    }
}

fn warmup(section: &ScheduleSection, budget: Budget, resolver: &mut Resolver<'_>) -> Warmup {
    let length = match (section.warmup_steps, section.warmup_epochs) {
        (Some(steps), Some(epochs)) => {
            resolver.exclusive("schedule.warmup_steps", steps, "schedule.warmup_epochs", epochs);
            WarmupLength::Steps(steps)
        }
        (steps, None) => WarmupLength::Steps(steps.unwrap_or(0)),
        (None, Some(epochs)) => {
            WarmupLength::Epochs(resolver.zero_or_more("schedule.warmup_epochs", epochs))
        }
    };
    // Epochs and steps are compared when the data are known.
    match (length, budget) {
        (WarmupLength::Steps(steps), Budget::Steps(all)) => {
            let remedy = format!("must not be above train.max_steps = {all}");
            resolver.check("schedule.warmup_steps", steps, steps <= all, &remedy);
        }
        (WarmupLength::Epochs(epochs), Budget::Epochs(all)) if epochs > all as f64 => {
            let remedy = format!("must not be above train.max_epochs = {all}");
            resolver.check("schedule.warmup_epochs", epochs, false, &remedy);
        }
        _ => {}
    }
    Warmup { length, start: warmup_start(section, resolver) }
}

fn warmup_start(section: &ScheduleSection, resolver: &mut Resolver<'_>) -> WarmupStart {
    let key = "schedule.warmup_start_factor";
    let start = section.warmup_start.map(|WarmupStartKind::Base| WarmupStart::Base);
    if let (Some(factor), Some(kind)) = (section.warmup_start_factor, section.warmup_start) {
        resolver.exclusive(key, factor, "schedule.warmup_start", kind);
    }
    if start.is_some() && section.scaling.is_none_or(|rule| rule == ScalingRule::None) {
        let message = "schedule.warmup_start = \"base\": the rate before scaling is the rate itself; set \
                       schedule.scaling, or warmup_start_factor instead";
        resolver.reject("schedule.warmup_start", message);
    }
    start.unwrap_or_else(|| {
        let factor = section.warmup_start_factor.unwrap_or(0.1);
        let ok = factor > 0.0 && factor <= 1.0;
        WarmupStart::Factor(resolver.check(key, factor, ok, "must be above 0 and at most 1"))
    })
}

fn step(section: &ScheduleSection, resolver: &mut Resolver<'_>) -> Course {
    let size = section.step_size.unwrap_or(1);
    if section.step_size.is_none() {
        resolver.missing("schedule.step_size", "the epochs between two falls of the rate");
    }
    resolver.check("schedule.step_size", size, size > 0, "must be 1 or more");
    let unit = section.unit.unwrap_or(StepUnit::Epoch);
    Course::Step { size, gamma: gamma(section, resolver), unit }
}

fn multi_step(section: &ScheduleSection, resolver: &mut Resolver<'_>) -> Course {
    let key = "schedule.milestones";
    let milestones = section.milestones.clone().unwrap_or_default();
    if milestones.is_empty() {
        resolver.missing(key, "the epochs at which the rate falls, such as [30, 60, 80]");
    }
    if milestones.first() == Some(&0) || milestones.windows(2).any(|pair| pair[0] >= pair[1]) {
        let message = format!("{key} = {milestones:?}: must begin at 1 or later and increase");
        resolver.reject(key, message);
    }
    let unit = section.unit.unwrap_or(StepUnit::Epoch);
    Course::MultiStep { milestones, gamma: gamma(section, resolver), unit }
}

fn gamma(section: &ScheduleSection, resolver: &mut Resolver<'_>) -> f64 {
    let gamma = section.gamma.unwrap_or(0.1);
    let ok = gamma > 0.0 && gamma <= 1.0;
    resolver.check("schedule.gamma", gamma, ok, "must be above 0 and at most 1")
}

fn min_lr(section: &ScheduleSection, lr: f64, resolver: &mut Resolver<'_>) -> f64 {
    let min_lr = section.min_lr.unwrap_or(0.0);
    // Without a rate to compare with, which is reported by itself, 0 is still right.
    let ok = min_lr >= 0.0 && (min_lr <= lr || min_lr == 0.0);
    let scaled = section.scaling.is_some_and(|rule| rule != ScalingRule::None);
    let name = if scaled { "the scaled optimizer.lr" } else { "optimizer.lr" };
    resolver.check("schedule.min_lr", min_lr, ok, &format!("must be from 0 to {name} = {lr}"))
}

fn one_cycle(section: &ScheduleSection, resolver: &mut Resolver<'_>) -> Course {
    let default = OneCycle::default();
    let pct_start = section.pct_start.unwrap_or(default.pct_start);
    let ok = (0.0..=1.0).contains(&pct_start);
    resolver.check("schedule.pct_start", pct_start, ok, "must be from 0 to 1");
    let mut factor = |key: &str, written: Option<f64>, default: f64| {
        resolver.above_zero(key, written.unwrap_or(default))
    };
    let div_factor = factor("schedule.div_factor", section.div_factor, default.div_factor);
    let final_div_factor =
        factor("schedule.final_div_factor", section.final_div_factor, default.final_div_factor);
    Course::OneCycle(OneCycle {
        max_lr: section.max_lr.map(|lr| resolver.above_zero("schedule.max_lr", lr)),
        pct_start,
        div_factor,
        final_div_factor,
        anneal_strategy: section.anneal_strategy.unwrap_or(AnnealStrategy::Cos),
        momentum: cycled_momentum(section, resolver),
    })
}

/// Lowest and highest momentum of a cycle, unless momentum is left alone.
fn cycled_momentum(section: &ScheduleSection, resolver: &mut Resolver<'_>) -> Option<(f64, f64)> {
    let keys = [
        ("schedule.base_momentum", section.base_momentum, 0.85),
        ("schedule.max_momentum", section.max_momentum, 0.95),
    ];
    if section.cycle_momentum == Some(false) {
        for (key, _, _) in keys.iter().filter(|(_, written, _)| written.is_some()) {
            let message = format!("{key} has no effect with cycle_momentum = false; remove it");
            resolver.reject(key, message);
        }
        return None;
    }
    let [base, max] = keys.map(|(key, written, default)| {
        let value = written.unwrap_or(default);
        let ok = (0.0..1.0).contains(&value);
        resolver.check(key, value, ok, "must be 0 or more and below 1")
    });
    if base > max {
        let remedy = format!("must not be above schedule.max_momentum = {max}");
        resolver.check("schedule.base_momentum", base, false, &remedy);
    }
    Some((base, max))
}

fn plateau(
    section: &ScheduleSection,
    lr: f64,
    around: &Surroundings,
    resolver: &mut Resolver<'_>,
) -> Course {
    let default = ReduceOnPlateau::default();
    let metric = section.metric.clone().unwrap_or(default.metric);
    if section.mode.is_none() && metric != "loss" {
        let what = format!("\"min\" or \"max\", whether lower or higher \"{metric}\" is better");
        resolver.missing("schedule.mode", &what);
    }
    let factor = section.factor.unwrap_or(default.factor);
    let ok = factor > 0.0 && factor < 1.0;
    resolver.check("schedule.factor", factor, ok, "must be above 0 and below 1");
    if around.check_val_every_n_epochs == 0 {
        let message = "schedule.kind = \"reduce_on_plateau\": watches validations, and \
                       train.check_val_every_n_epochs = 0 makes none before the end; set it to 1";
        resolver.reject("schedule.kind", message);
    }
    let threshold = section.threshold.unwrap_or(default.threshold);
    Course::ReduceOnPlateau(ReduceOnPlateau {
        metric,
        mode: section.mode.unwrap_or(PlateauMode::Min),
        factor,
        patience: section.patience.unwrap_or(default.patience),
        threshold: resolver.zero_or_more("schedule.threshold", threshold),
        threshold_mode: section.threshold_mode.unwrap_or(ThresholdMode::Rel),
        cooldown: section.cooldown.unwrap_or(default.cooldown),
        min_lr: min_lr(section, lr, resolver),
    })
}

/// Rejects keys that only another kind of schedule reads.
fn reject_foreign(section: &ScheduleSection, kind: ScheduleKind, resolver: &mut Resolver<'_>) {
    use ScheduleKind::{Constant, Cosine, MultiStep, OneCycle, Polynomial, ReduceOnPlateau, Step};
    const ALL_BUT_CYCLE: &[ScheduleKind] =
        &[Constant, Step, MultiStep, Cosine, Polynomial, ReduceOnPlateau];
    let owned: [(&str, bool, &[ScheduleKind]); 25] = [
        ("warmup_steps", section.warmup_steps.is_some_and(|steps| steps > 0), ALL_BUT_CYCLE),
        ("warmup_epochs", section.warmup_epochs.is_some(), ALL_BUT_CYCLE),
        ("warmup_start_factor", section.warmup_start_factor.is_some(), ALL_BUT_CYCLE),
        ("warmup_start", section.warmup_start.is_some(), ALL_BUT_CYCLE),
        ("unit", section.unit.is_some(), &[Step, MultiStep]),
        ("step_size", section.step_size.is_some(), &[Step]),
        ("milestones", section.milestones.is_some(), &[MultiStep]),
        ("gamma", section.gamma.is_some(), &[Step, MultiStep]),
        ("power", section.power.is_some(), &[Polynomial]),
        ("min_lr", section.min_lr.is_some(), &[Cosine, Polynomial, ReduceOnPlateau]),
        ("max_lr", section.max_lr.is_some(), &[OneCycle]),
        ("pct_start", section.pct_start.is_some(), &[OneCycle]),
        ("div_factor", section.div_factor.is_some(), &[OneCycle]),
        ("final_div_factor", section.final_div_factor.is_some(), &[OneCycle]),
        ("anneal_strategy", section.anneal_strategy.is_some(), &[OneCycle]),
        ("cycle_momentum", section.cycle_momentum.is_some(), &[OneCycle]),
        ("base_momentum", section.base_momentum.is_some(), &[OneCycle]),
        ("max_momentum", section.max_momentum.is_some(), &[OneCycle]),
        ("metric", section.metric.is_some(), &[ReduceOnPlateau]),
        ("mode", section.mode.is_some(), &[ReduceOnPlateau]),
        ("factor", section.factor.is_some(), &[ReduceOnPlateau]),
        ("patience", section.patience.is_some(), &[ReduceOnPlateau]),
        ("threshold", section.threshold.is_some(), &[ReduceOnPlateau]),
        ("threshold_mode", section.threshold_mode.is_some(), &[ReduceOnPlateau]),
        ("cooldown", section.cooldown.is_some(), &[ReduceOnPlateau]),
    ];
    for (key, written, owners) in owned {
        if !written || owners.contains(&kind) {
            continue;
        }
        let key = format!("schedule.{key}");
        let message = match kind {
            OneCycle if key.contains("warmup") => {
                format!("{key}: kind \"one_cycle\" warms up by itself (pct_start); remove it")
            }
            _ => {
                let owners: Vec<String> =
                    owners.iter().map(|owner| format!("\"{owner}\"")).collect();
                let owners = owners.join(", ");
                format!("{key} is a key of kind {owners}, not of \"{kind}\"; remove it")
            }
        };
        resolver.reject(&key, message);
    }
}
