//! `cargo xtask soak zero-memory`: what sharing the optimizer saves, by our accounting and by the
//! system's.

use crate::cargo::build_release;
use crate::train_loop::{arguments, figures, number};
use crate::{Result, record};
use serde_json::Value;

/// How large.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Hidden layers of the perceptron.
    #[arg(long, default_value_t = 7)]
    layers: usize,
    /// Units of each; 4096 in 7 layers make 104 million parameters.
    #[arg(long, default_value_t = 4096)]
    width: usize,
    /// Optimizer steps.
    #[arg(long, default_value_t = 4)]
    steps: usize,
}

const RANKS: usize = 4;
/// Most that a rank may hold of the optimizer, as a part of the whole.
const OPTIMIZER_PART: f64 = 0.3;
/// Least part of the accounted saving by which the resident memory has to fall.
const SAVING_PART: f64 = 0.8;

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = build_release()?.train_loop;
    let Args { layers, width, steps } = args;
    let mut stages = Vec::new();
    for stage in 0..=2 {
        let words = format!(
            "memory --ranks {RANKS} --stage {stage} --layers {layers} --width {width} --steps {steps}"
        );
        let printed = figures(&program, "auto", &arguments(&words))?;
        println!("stage {stage}: {printed}");
        stages.push(Stage::read(&printed)?);
    }
    let [off, optimizer, gradients] = stages.as_slice() else {
        return Err("three stages expected".into());
    };
    let (text, failures) = report(off, [optimizer, gradients], *steps);
    print!("\n{text}");
    record::write("soak-zero-memory", &text)?;
    match failures {
        0 => Ok(()),
        failures => Err(format!("{failures} of the goals were missed").into()),
    }
}

/// Megabytes of each rank.
struct Stage {
    num_parameters: f64,
    ranks: Vec<Memory>,
}

/// Megabytes of a rank.
#[derive(Clone, Copy)]
struct Memory {
    parameters: f64,
    gradients: f64,
    optimizer: f64,
    before_steps: f64,
    in_steps: f64,
}

impl Stage {
    fn read(printed: &Value) -> Result<Self> {
        let ranks = printed["ranks"].as_array().ok_or("figures without ranks")?;
        let num_parameters = number(printed, "num_parameters")?;
        Ok(Self { num_parameters, ranks: ranks.iter().map(Memory::read).collect::<Result<_>>()? })
    }

    /// The rank with the most of something.
    fn most(&self, part: impl Fn(&Memory) -> f64) -> f64 {
        self.ranks.iter().map(part).fold(0.0, f64::max)
    }

    /// Least part, of all ranks, of the accounted saving against `off` that the peak fell by.
    fn saving_part(&self, off: &Self) -> f64 {
        let ranks = self.ranks.iter().zip(&off.ranks);
        let parts =
            ranks.map(|(own, off)| (off.peak() - own.peak()) / (off.accounted() - own.accounted()));
        parts.fold(f64::INFINITY, f64::min)
    }
}

impl Memory {
    fn read(printed: &Value) -> Result<Self> {
        let megabytes =
            |key: &str| Ok::<_, Box<dyn std::error::Error>>(number(printed, key)? / 1e6);
        Ok(Self {
            parameters: megabytes("parameters")?,
            gradients: megabytes("gradients")?,
            optimizer: megabytes("optimizer")?,
            before_steps: megabytes("peak_before_steps")?,
            in_steps: megabytes("peak_in_steps")?,
        })
    }

    /// What `DataParallel` counts.
    fn accounted(&self) -> f64 {
        self.parameters + self.gradients + self.optimizer
    }

    /// Most resident memory of the whole run.
    fn peak(&self) -> f64 {
        self.before_steps.max(self.in_steps)
    }
}

/// The figures as Markdown tables, and how many goals were missed.
fn report(off: &Stage, [optimizer, gradients]: [&Stage; 2], steps: usize) -> (String, usize) {
    let mut text = format!(
        "A perceptron of {:.1} million parameters (f32), AdamW, {RANKS} ranks of one machine over shared memory, \
         {steps} steps. Megabytes of the rank with the most. *Accounted*: what `DataParallel::memory` counts \
         between two steps. *Peak*: the most resident memory.\n\n\
         | ZeRO stage | parameters | gradients | optimizer | accounted | peak before the steps | peak in \
         the steps |\n|---|---|---|---|---|---|---|\n",
        off.num_parameters / 1e6
    );
    for (name, stage) in [("off", off), ("1", optimizer), ("2", gradients)] {
        text.push_str(&format!(
            "| {name} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |\n",
            stage.most(|rank| rank.parameters),
            stage.most(|rank| rank.gradients),
            stage.most(|rank| rank.optimizer),
            stage.most(Memory::accounted),
            stage.most(|rank| rank.before_steps),
            stage.most(|rank| rank.in_steps),
        ));
    }
    let state = |stage: &Stage| stage.most(|rank| rank.optimizer);
    let part = |stage: &Stage| state(stage) / state(off);
    let rows = [
        ("stage 1: optimizer / unshared", part(optimizer), part(optimizer) <= OPTIMIZER_PART),
        (
            "stage 1: peak saved / accounted saving, least of the ranks",
            optimizer.saving_part(off),
            optimizer.saving_part(off) >= SAVING_PART,
        ),
    ];
    let goals = [format!("at most {OPTIMIZER_PART}"), format!("at least {SAVING_PART}")];
    text.push_str("\n| figure | value | goal | |\n|---|---|---|---|\n");
    let mut missed = 0;
    for ((name, value, reached), goal) in rows.into_iter().zip(goals) {
        missed += usize::from(!reached);
        let verdict = if reached { "reached" } else { "missed" };
        text.push_str(&format!("| {name} | {value:.3} | {goal} | {verdict} |\n"));
    }
    for (name, value) in [
        ("stage 2: optimizer / unshared", part(gradients)),
        ("stage 2: peak saved / accounted saving, least of the ranks", gradients.saving_part(off)),
    ] {
        text.push_str(&format!("| {name} | {value:.3} | | |\n"));
    }
    (text, missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(optimizer: f64, peak: f64) -> Stage {
        let rank = Memory {
            parameters: 400.0,
            gradients: 400.0,
            optimizer,
            before_steps: 1.0,
            in_steps: peak,
        };
        Stage { num_parameters: 1e8, ranks: vec![rank; RANKS] }
    }

    #[test]
    fn too_much_state_and_too_little_saved_miss_their_goals() {
        let off = stage(800.0, 2000.0);
        for (optimizer, peak, missed) in
            [(200.0, 1400.0, 0), (240.0, 1552.0, 0), (248.0, 1400.0, 1), (200.0, 1600.0, 1)]
        {
            let shared = stage(optimizer, peak);
            let (text, failures) = report(&off, [&shared, &shared], 4);
            assert_eq!(failures, missed, "{text}");
        }
    }
}
