//! `bonfire batch-find`: how fast training is at which batch size, and how much memory it takes.

mod search;
mod trial;

pub(crate) use trial::TrialRecorder;

use crate::CliError;
use crate::args::BatchFindArgs;
use crate::exit::Outcome;
use crate::output::print;
use crate::registry::Registry;
use crate::train::Recipe;
use crate::voice::say;
use search::{Attempt, End, Found, Limits};
use std::path::Path;
use trial::Trials;

pub(crate) fn find(registry: &Registry, args: &BatchFindArgs) -> Result<Outcome, CliError> {
    let ranks = args.nproc_per_node as usize;
    // Tells what is wrong with the recipe before a child does.
    let recipe = Recipe::load(registry, &args.config, &args.overrides, ranks)?;
    let survey = recipe.model.survey(&recipe.config, &recipe.plan, &recipe.images)?;
    let accumulated = ranks * recipe.plan.train.accumulate_grad_batches;
    let trials = Trials::new(args)?;
    // A step of the run takes no more than the data have.
    let most = (survey.train_samples / accumulated).max(1);
    let too_large = |problem: String| {
        Err(CliError::Option { option: format!("--init-val {}", args.init_val), problem })
    };
    if args.init_val > args.max_val {
        return too_large(format!("it is above --max-val {}", args.max_val));
    }
    if args.init_val > most {
        return too_large(format!(
            "the training data have {} images, and a step takes {accumulated} batches: at most {most} fit",
            survey.train_samples
        ));
    }
    let limits = Limits {
        first: args.init_val,
        last: args.max_val.min(most),
        memory_bytes: args.memory_limit.map_or_else(free_memory, |gib| Some(gib * GIB)),
        largest: args.largest,
    };
    let found = search::run(&limits, |batch_size| {
        let attempt = trials.run(batch_size)?;
        match &attempt {
            Attempt::Fits(trial) => say(format_args!(
                "batch size {batch_size}: {:.1} images/s, {:.1} ms a step, {:.0} MiB",
                trial.images_per_s,
                trial.seconds_per_step * 1e3,
                trial.peak_memory_bytes / MIB
            )),
            Attempt::TooLarge(reason) => say(format_args!("batch size {batch_size}: {reason}")),
        }
        Ok::<_, CliError>(attempt)
    })?;
    print(tell(&found, &limits, recipe.plan.data.batch_size))?;
    Ok(Outcome::Done)
}

const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;

/// Bytes of main memory that nobody needs, of the machine and of the container.
fn free_memory() -> Option<f64> {
    match (free_on_machine(), free_in_container(Path::new("/sys/fs/cgroup"))) {
        (Some(machine), Some(container)) => Some(machine.min(container)),
        (machine, container) => machine.or(container),
    }
}

/// What a control group may still take, if it is bounded.
fn free_in_container(folder: &Path) -> Option<f64> {
    let number = |name: &str| -> Option<f64> {
        std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
    };
    let limit = number("memory.max")?;
    Some((limit - number("memory.current").unwrap_or(0.0)).max(0.0))
}

fn free_on_machine() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

fn tell(found: &Found, limits: &Limits, written: usize) -> String {
    let mut text = String::from("batch_size,images_per_s,ms_per_step,peak_memory_mib\n");
    for (batch_size, trial) in &found.trials {
        text.push_str(&format!(
            "{batch_size},{:.1},{:.2},{:.0}\n",
            trial.images_per_s,
            trial.seconds_per_step * 1e3,
            trial.peak_memory_bytes / MIB
        ));
    }
    text.push_str(&format!("# {}\n", why_ended(&found.end, limits)));
    text.push_str(&match found.suggestion(limits.largest) {
        Some((batch_size, share)) => format!(
            "# suggestion: data.batch_size = {batch_size} for each rank, {:.0} % of the best speed seen (the \
             recipe has {written}); with another batch size the learning rate needs another look \
             (schedule.scaling, bonfire lr-find)\n",
            share * 100.0
        ),
        None => "# no suggestion: not even the first batch size goes through\n".to_owned(),
    });
    text
}

fn why_ended(end: &End, limits: &Limits) -> String {
    match end {
        End::Last => {
            format!("ended at {}, the largest that was allowed or that the data have", limits.last)
        }
        End::NoFaster => "ended, since larger batches are no faster (--largest goes on)".to_owned(),
        End::Memory { batch_size, needed } => format!(
            "ended before {batch_size}: it would need about {:.0} MiB of the {:.0} MiB that there are",
            needed / MIB,
            limits.memory_bytes.unwrap_or(0.0) / MIB
        ),
        End::TooLarge { batch_size, reason } => format!("ended at {batch_size}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_what_is_left_of_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(free_in_container(folder.path()), None);
        std::fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(free_in_container(folder.path()), None);
        std::fs::write(folder.path().join("memory.max"), "1000\n").unwrap();
        std::fs::write(folder.path().join("memory.current"), "400\n").unwrap();
        assert_eq!(free_in_container(folder.path()), Some(600.0));
        assert!(free_memory().unwrap() > 0.0);
    }
}
