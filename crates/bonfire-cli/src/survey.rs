//! What is known of a run only with its data and its model, before it begins.

use bonfire_parallel::{ParallelError, ParameterSettings};
use bonfire_tensor::parameters::ParameterSpec;
use bonfire_trainer::config::{
    AveragePlan, ConfigError, Plan, Problem, RunConfig, RunLength, WarmupLength,
};
use bonfire_trainer::{ModelSummary, TrainError, TrainerConfig};

/// What a run's data and model come to.
pub(crate) struct Survey {
    pub(crate) train_samples: usize,
    pub(crate) valid_samples: usize,
    /// Channels, rows and columns of an image.
    pub(crate) image: [usize; 3],
    pub(crate) num_classes: usize,
    /// The trainable parameters, with what their groups say.
    pub(crate) parameters: Vec<(ParameterSpec, ParameterSettings)>,
    pub(crate) length: RunLength,
    /// Layers of the model, for one image.
    pub(crate) model: ModelSummary,
}

/// Checks that there is something to train on, and all that a recipe says of its length and its
/// model's parameters at once. Every rank finds the same. A model may be `synchronized` by batch
/// normalisation.
pub(crate) fn check(
    config: &RunConfig,
    plan: &Plan,
    samples: usize,
    trainable: &[ParameterSpec],
    synchronized: bool,
) -> Result<(RunLength, Vec<ParameterSettings>), TrainError> {
    let ranks = plan.world_size;
    if samples < ranks {
        return Err(TrainError::TooFewSamples { split: "training", samples, ranks });
    }
    let length = plan.run_length(samples as u64);
    if length.steps_per_epoch == 0 {
        return Err(TrainError::NoSteps { samples });
    }
    let mut problems = Vec::new();
    if let Err(error) = TrainerConfig::from_plan(plan).check_schedule(length, true) {
        let key = match (&error, plan.schedule.warmup.length) {
            (TrainError::WarmupTooLong { .. }, WarmupLength::Steps(_)) => "schedule.warmup_steps",
            (TrainError::WarmupTooLong { .. }, WarmupLength::Epochs(_)) => "schedule.warmup_epochs",
            _ => "schedule",
        };
        problems.push(config.problem(key, error.to_string()));
    }
    problems.extend(problem_of_average(config, plan, length));
    problems.extend(problem_of_last_batch(config, plan, samples).filter(|_| synchronized));
    let settings = plan.parameter_groups.settings(trainable).unwrap_or_else(|error| {
        problems.extend(problems_of_groups(config, error));
        Vec::new()
    });
    Ok(ConfigError::check((length, settings), problems)?)
}

/// An average that begins after the run has ended.
fn problem_of_average(config: &RunConfig, plan: &Plan, length: RunLength) -> Option<Problem> {
    let average = plan.average.as_ref()?;
    let first = average.first_step(length.steps_per_epoch);
    let key = match average {
        AveragePlan::Swa { .. } => "average.start_epoch",
        _ => "average.start_step",
    };
    let total = length.total_steps;
    let message = format!(
        "{key}: the first values would be those of step {first}, and the run has {total}: nothing \
         would be averaged; begin earlier or train longer"
    );
    (first >= total).then(|| config.problem(key, message))
}

/// A last batch that leaves a rank without samples, where every rank needs one: with synchronised
/// batch normalisation.
fn problem_of_last_batch(config: &RunConfig, plan: &Plan, samples: usize) -> Option<Problem> {
    let ranks = plan.world_size;
    let last = samples % (plan.data.batch_size * ranks);
    let lacks = !plan.data.drop_last && (1..ranks).contains(&last);
    let error = TrainError::RankWithoutSamples { samples: last, ranks };
    lacks.then(|| config.problem("data.batch_size", error.to_string()))
}

fn problems_of_groups(config: &RunConfig, error: ParallelError) -> Vec<Problem> {
    let messages = match error {
        ParallelError::ParameterGroups { problems } => problems,
        other => vec![other.to_string()],
    };
    let key = "optimizer.groups";
    messages.iter().map(|message| config.problem(key, format!("{key}: {message}"))).collect()
}
