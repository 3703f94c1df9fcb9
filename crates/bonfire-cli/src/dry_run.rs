//! `bonfire train --dry-run`: what a recipe means, without training.

use crate::CliError;
use crate::exit::Outcome;
use crate::output::print;
use crate::plot;
use crate::survey::Survey;
use bonfire_parallel::ParameterSettings;
use bonfire_trainer::config::{Course, LrScaling, OptimizerPlan, Plan, Schedule};
use std::fmt::Write as _;
use std::path::Path;

/// Prints the plan as TOML, with what it comes to as comments around it, and draws the rate if asked.
pub(crate) fn show(plan: &Plan, survey: &Survey, plot: Option<&Path>) -> Result<Outcome, CliError> {
    let schedule = Schedule::new(&plan.schedule, plan.optimizer.lr(), survey.length);
    let text = format!("{}\n{}", plan.to_toml()?, describe(plan, survey, &schedule));
    print(text)?;
    if let Some(path) = plot {
        let svg = plot::svg(&plan.name, &schedule);
        std::fs::write(path, svg).map_err(|source| {
            let path = path.to_path_buf();
            CliError::Io { action: "writing", path, source }
        })?;
    }
    Ok(Outcome::Done)
}

/// Data, model, length and rates, as comments of TOML.
fn describe(plan: &Plan, survey: &Survey, schedule: &Schedule) -> String {
    let mut lines = vec![data(survey), model(survey), length(plan, survey)];
    lines.extend(groups(plan, survey));
    lines.extend(scaling(plan));
    if let Course::ReduceOnPlateau(plateau) = &plan.schedule.course {
        lines.push(format!(
            "rate: multiplied by {} when \"{}\" has not improved for more than {} validations",
            plateau.factor, plateau.metric, plateau.patience
        ));
    }
    lines.push(String::new());
    lines.extend(layers(survey));
    lines.push(String::new());
    lines.extend(rates(plan, survey, schedule));
    lines.iter().fold(String::new(), |mut text, line| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{}", format!("# {line}").trim_end());
        text
    })
}

fn data(survey: &Survey) -> String {
    let [channels, rows, columns] = survey.image;
    format!(
        "data: {} training and {} test images of {channels}x{rows}x{columns}, {} classes",
        survey.train_samples, survey.valid_samples, survey.num_classes
    )
}

fn model(survey: &Survey) -> String {
    let elements: usize = survey.parameters.iter().map(|(spec, _)| spec.num_elements()).sum();
    format!("model: {elements} parameters in {} tensors", survey.parameters.len())
}

/// The layers, for one image.
fn layers(survey: &Survey) -> impl Iterator<Item = String> {
    let text = survey.model.to_string();
    text.lines().map(str::to_owned).collect::<Vec<_>>().into_iter()
}

fn length(plan: &Plan, survey: &Survey) -> String {
    let length = survey.length;
    format!(
        "run: {} steps, {} an epoch, of {} samples ({} rank(s) x {} x {} micro-batch(es))",
        length.total_steps,
        length.steps_per_epoch,
        plan.data.global_batch_size,
        plan.world_size,
        plan.data.batch_size,
        plan.train.accumulate_grad_batches
    )
}

/// A line for each combination of rate factor and decay, if there is more than one.
fn groups(plan: &Plan, survey: &Survey) -> Vec<String> {
    let mut kinds = Vec::new();
    for (_, settings) in &survey.parameters {
        if !kinds.contains(settings) {
            kinds.push(*settings);
        }
    }
    if kinds.len() < 2 && plan.parameter_groups.groups.is_empty() {
        return Vec::new();
    }
    let line = |kind: &ParameterSettings| {
        let of_kind = survey.parameters.iter().filter(|(_, settings)| settings == kind);
        let names: Vec<&str> = of_kind.map(|(spec, _)| spec.path.as_str()).collect();
        let decay = kind.weight_decay.unwrap_or(plan.optimizer.weight_decay());
        let factor = kind.lr_factor;
        format!("group: rate x {factor}, weight decay {decay}: {}", names.join(", "))
    };
    kinds.iter().map(line).collect()
}

fn scaling(plan: &Plan) -> Option<String> {
    let scaling = plan.schedule.scaling;
    let written = match &plan.schedule.course {
        Course::OneCycle(cycle) => cycle.max_lr.unwrap_or(plan.optimizer.lr()),
        _ => plan.optimizer.lr(),
    };
    let scaled = significant(written * scaling.factor());
    (scaling != LrScaling::None).then(|| format!("rate: {written} becomes {scaled} ({scaling})"))
}

/// The table of rates at the steps at which something changes.
fn rates(plan: &Plan, survey: &Survey, schedule: &Schedule) -> Vec<String> {
    let mut lines =
        vec![format!("{:>10} {:>9} {:>14} {:>9}", "step", "epoch", "learning rate", "momentum")];
    lines.extend(schedule.landmarks().into_iter().map(|mark| {
        let epoch = mark.step as f64 / survey.length.steps_per_epoch.max(1) as f64;
        let momentum = schedule.momentum(mark.step).unwrap_or(momentum(&plan.optimizer));
        let lr = significant(schedule.lr(mark.step));
        let momentum = significant(momentum);
        format!("{:>10} {epoch:>9.2} {lr:>14} {momentum:>9}  {}", mark.step, mark.what)
    }));
    lines
}

/// The optimizer's own momentum, or first beta.
fn momentum(optimizer: &OptimizerPlan) -> f64 {
    match *optimizer {
        OptimizerPlan::Sgd { momentum, .. } => momentum,
        OptimizerPlan::Adam { betas, .. } | OptimizerPlan::AdamW { betas, .. } => betas[0],
        _ => 0.0,
    }
}

/// A number with six digits that count.
pub(crate) fn significant(value: f64) -> String {
    let rounded = format!("{value:.5e}");
    let plain = rounded.parse::<f64>().map_or_else(|_| rounded.clone(), |value| value.to_string());
    // Very small numbers are read more easily with an exponent.
    if plain.len() > 12 { rounded } else { plain }
}

#[cfg(test)]
mod tests {
    use super::significant;

    #[test]
    fn numbers_have_six_digits_that_count() {
        let cases = [
            (0.004, "0.004"),
            (0.1 + 0.2, "0.3"),
            (1.0 / 3.0, "0.333333"),
            (0.0, "0"),
            (123_456_789.0, "123457000"),
            (1.234_567_8e-12, "1.23457e-12"),
        ];
        for (value, expected) in cases {
            assert_eq!(significant(value), expected);
        }
    }
}
