//! The figures of the overhead bench as Markdown tables, beside their goals.

use super::{
    ALONE, Args, Figures, IN_STEP, LOOPS, Network, ONE_RANK, OVER_SHARED_MEMORY, OVER_TCP, Program,
    TORCH, TORCH_ALONE, WITHOUT_OVERLAP,
};
use crate::Result;
use crate::bench::spread;
use crate::train_loop::number;

/// A figure and what it is to be.
struct Row {
    name: String,
    value: f64,
    goal: Option<Goal>,
}

#[derive(Clone, Copy)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Row {
    fn markdown(&self) -> String {
        let Self { name, value, goal } = self;
        let (goal, reached) = match *goal {
            None => return format!("| {name} | {value:.3} | | |\n"),
            Some(Goal::AtLeast(goal)) => (format!("at least {goal}"), *value >= goal),
            Some(Goal::AtMost(goal)) => (format!("at most {goal}"), *value <= goal),
        };
        let verdict = if reached { "reached" } else { "missed" };
        format!("| {name} | {value:.3} | {goal} | {verdict} |\n")
    }
}

impl Figures<'_> {
    pub(super) fn report(&self, args: &Args) -> Result<String> {
        let Args { rounds, seconds, .. } = args;
        let mut text = format!(
            "Plain SGD on random data, batches of 64 a rank (ResNet-18: 32), one thread a rank; median of \
             {rounds} rounds in turns, of at least {seconds} s and 3 steps each. Ratios are medians of the \
             rounds' own. *No exchange*: two processes at the same time, each as a group of one; *in step*: \
             the same, but no rank begins a step before the other has ended its own, which is what any \
             synchronous training costs on this machine. *No \
             overlap*: the same buckets, sent off when the backward pass has ended.\n\n\
             | network | loop | images/s (all ranks) | lowest | highest |\n|---|---|---|---|---|\n"
        );
        for index in 0..self.networks.len() {
            text.push_str(&self.images(index)?);
        }
        text.push_str("\n| figure | median | goal | |\n|---|---|---|---|\n");
        for index in 0..self.networks.len() {
            let rows = self.ratios(index)?;
            text.extend(rows.iter().map(Row::markdown));
        }
        text.push_str(
            "\nWhat a step waits for after the backward pass: *last*, the rank whose backward pass ends last, \
             which is what the exchange adds (median over steps); *mean*, all ranks, with what they wait for \
             each other. *Alone*: the buckets all-reduced one after the other by idle ranks.\n\n\
             | network | loop | step ms | wait ms, last | wait ms, mean | all-reduce ms, alone | kB sent \
             per step and rank |\n|---|---|---|---|---|---|---|\n",
        );
        for index in 0..self.networks.len() {
            for which in [ALONE, OVER_SHARED_MEMORY, OVER_TCP, WITHOUT_OVERLAP] {
                text.push_str(&self.step(index, which)?);
            }
        }
        Ok(text)
    }

    /// Images per second of a network's loops.
    fn images(&self, index: usize) -> Result<String> {
        let mut text = String::new();
        for (which, one) in LOOPS.iter().enumerate() {
            if one.program == Program::PyTorch && !self.torch {
                continue;
            }
            let (low, middle, high) = spread(&self.figures(index, which, "images_per_s")?)?;
            let network = self.networks[index].name;
            let name = one.name;
            text.push_str(&format!(
                "| {network} | {name} | {middle:.1} | {low:.1} | {high:.1} |\n"
            ));
        }
        Ok(text)
    }

    /// The rows with goals.
    fn ratios(&self, index: usize) -> Result<Vec<Row>> {
        let Network { name, goals, wait, .. } = self.networks[index];
        let mut rows = Vec::new();
        let mut efficiency = |what: &str, with: usize, without: usize, goal: Option<f64>| {
            let value = self.ratio(index, (with, "images_per_s"), (without, "images_per_s"))?;
            let name = format!("{name}: {what}");
            rows.push(Row { name, value, goal: goal.map(Goal::AtLeast) });
            Ok::<(), Box<dyn std::error::Error>>(())
        };
        efficiency("with / without exchange, shared memory", OVER_SHARED_MEMORY, ALONE, goals[0])?;
        efficiency("with / without exchange, TCP", OVER_TCP, ALONE, goals[1])?;
        efficiency(
            "with exchange, shared memory / in step without",
            OVER_SHARED_MEMORY,
            IN_STEP,
            None,
        )?;
        efficiency("without exchange, in step / not", IN_STEP, ALONE, None)?;
        if self.torch {
            efficiency("with / without exchange, PyTorch DDP", TORCH, TORCH_ALONE, None)?;
        }
        efficiency("2 ranks / 1 rank, shared memory", OVER_SHARED_MEMORY, ONE_RANK, None)?;
        efficiency("2 ranks / 1 rank, no exchange", ALONE, ONE_RANK, None)?;
        let part = self.ratio(index, (OVER_TCP, "last_wait_ms"), (OVER_TCP, "all_reduce_ms"))?;
        rows.push(Row {
            name: format!("{name}: wait / all-reduce alone, TCP"),
            value: part,
            goal: wait.map(Goal::AtMost),
        });
        let overlap = self.ratio(index, (OVER_TCP, "step_ms"), (WITHOUT_OVERLAP, "step_ms"))?;
        let name = format!("{name}: step with / without overlap, TCP");
        rows.push(Row { name, value: overlap, goal: None });
        Ok(rows)
    }

    /// What a step consists of.
    fn step(&self, index: usize, which: usize) -> Result<String> {
        let middle = |key: &str| {
            Ok::<f64, Box<dyn std::error::Error>>(spread(&self.figures(index, which, key)?)?.1)
        };
        let all_reduce = match which {
            ALONE => "-".to_string(),
            _ => format!("{:.2}", middle("all_reduce_ms")?),
        };
        Ok(format!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {all_reduce} | {:.1} |\n",
            self.networks[index].name,
            LOOPS[which].name,
            middle("step_ms")?,
            middle("last_wait_ms")?,
            middle("mean_wait_ms")?,
            middle("bytes_per_step")? / 1e3,
        ))
    }

    /// Median over rounds of the ratio of two figures of the same round, each of a loop.
    fn ratio(&self, index: usize, above: (usize, &str), below: (usize, &str)) -> Result<f64> {
        let above = self.figures(index, above.0, above.1)?;
        let below = self.figures(index, below.0, below.1)?;
        let ratios: Vec<f64> =
            above.iter().zip(&below).map(|(above, below)| above / below).collect();
        Ok(spread(&ratios)?.1)
    }

    /// A figure of a loop in each round.
    fn figures(&self, index: usize, which: usize, key: &str) -> Result<Vec<f64>> {
        self.printed[index][which].iter().map(|printed| number(printed, key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overhead::NETWORKS;

    #[test]
    fn efficiency_is_the_median_of_the_rounds_own_ratios() {
        let printed = |rate: f64| serde_json::json!({ "images_per_s": rate });
        let mut loops: [Vec<serde_json::Value>; LOOPS.len()] = Default::default();
        loops[ALONE] = [100.0, 50.0, 10.0].map(printed).to_vec();
        loops[OVER_TCP] = [90.0, 40.0, 10.0].map(printed).to_vec();
        let networks = [&NETWORKS[0]];
        let figures = Figures { networks: &networks, torch: false, printed: vec![loops] };
        let key = "images_per_s";
        assert_eq!(figures.ratio(0, (OVER_TCP, key), (ALONE, key)).unwrap(), 0.9);
        assert!(figures.ratio(0, (OVER_TCP, "step_ms"), (ALONE, key)).is_err());
    }

    #[test]
    fn a_goal_is_reached_at_its_bound() {
        let row = |value, goal| Row { name: "x".to_string(), value, goal: Some(goal) }.markdown();
        assert_eq!(row(0.97, Goal::AtLeast(0.97)), "| x | 0.970 | at least 0.97 | reached |\n");
        assert_eq!(row(0.969, Goal::AtLeast(0.97)), "| x | 0.969 | at least 0.97 | missed |\n");
        assert_eq!(row(0.31, Goal::AtMost(0.3)), "| x | 0.310 | at most 0.3 | missed |\n");
    }
}
