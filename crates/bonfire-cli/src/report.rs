//! What a person reads: the first line of a run and the table at its end.

use crate::CliError;
use crate::device::TrainDevice;
use crate::output::print;
use crate::voice::{keep_lines, say, voice};
use bonfire_comm::ProcessGroup;
use bonfire_parallel::{Compression, ZeroStage};
use bonfire_trainer::config::Plan;
use bonfire_trainer::run_folder::Summary;
use std::path::Path;

/// The first line: on what the run runs.
pub(crate) struct Header(String);

impl Header {
    pub(crate) fn new(
        group: &ProcessGroup,
        device: &TrainDevice,
        plan: &Plan,
        threads: usize,
    ) -> Self {
        let plural = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {one}s"),
        };
        Self(format!(
            "{}: engine {}, device {}, world size {} on {}, {} per rank{}",
            plan.name,
            group.engine_name(),
            device.describe(plan.precision.mode),
            group.world_size(),
            plural(group.num_machines(), "machine"),
            plural(threads, "thread"),
            exchange(plan),
        ))
    }

    pub(crate) fn print(&self) {
        say(&self.0);
    }
}

/// What the ranks do other than averaging whole gradients in every step.
fn exchange(plan: &Plan) -> String {
    let distributed = &plan.distributed;
    let mut text = String::new();
    if distributed.compression != Compression::None {
        text.push_str(&format!(", gradients compressed ({})", distributed.compression_kind()));
    }
    match distributed.zero_stage {
        ZeroStage::Off => {}
        ZeroStage::Optimizer => text.push_str(", ZeRO stage 1"),
        ZeroStage::Gradients => text.push_str(", ZeRO stage 2"),
    }
    if let Some(policy) = &distributed.local_sgd {
        text.push_str(&format!(", parameters averaged every {} steps", policy.period));
    }
    text
}

/// Prints the run's figures to standard output, unless only warnings and errors are to be told.
pub(crate) fn print_table(summary: &Summary, folder: &Path) -> Result<(), CliError> {
    let table = table(summary, folder);
    keep_lines(&table);
    match voice().quiet {
        true => Ok(()),
        false => print(table),
    }
}

fn table(summary: &Summary, folder: &Path) -> String {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_string(), |value| format!("{value:.digits$}"))
    };
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let share = &summary.time_share;
    // Only where the loss is scaled.
    let skipped = summary.skipped_steps.map_or_else(String::new, |skipped| skipped.to_string());
    // Only where there are any.
    let files = summary.skipped_files;
    let corrupt = match files.train + files.valid {
        0 => String::new(),
        _ => format!("{} training, {} validation", files.train, files.valid),
    };
    let averages = summary.variants.iter();
    let averages = averages.map(|v| format!("{} ({})", number(v.valid_accuracy, 4), v.name));
    let averages = averages.collect::<Vec<_>>().join(", ");
    let rows = [
        ("train loss", number(summary.train_loss, 4)),
        ("test loss", number(summary.valid_loss, 4)),
        ("test accuracy", number(summary.valid_accuracy, 4)),
        ("accuracy of averages", averages),
        ("images/s (all ranks)", format!("{:.0}", summary.images_per_s)),
        ("images/s of each rank", per_rank(&summary.images_per_s_by_rank)),
        ("speed-up / efficiency", against(summary)),
        ("epochs / steps", format!("{} / {}", summary.epochs, summary.steps)),
        ("seconds to first step", number(summary.seconds_to_first_step, 2)),
        ("time in data", percent(share.data)),
        ("time in forward", percent(share.forward)),
        ("time in backward", percent(share.backward)),
        ("time waiting for communication", percent(share.comm_wait)),
        ("time in optimizer", percent(share.optimizer)),
        ("processor cores busy (by rank)", cores(&summary.cpu_cores_by_rank)),
        ("device busy (by rank)", devices(&summary.device_utilization_by_rank)),
        ("peak memory (by rank)", memory(&summary.peak_memory_bytes_by_rank)),
        ("MB sent per step (rank 0)", format!("{:.3}", summary.bytes_sent_per_step / 1e6)),
        ("steps skipped after an overflow", skipped),
        ("corrupt files skipped", corrupt),
        ("parameters xxh3", summary.parameters_xxh3.clone()),
        ("run folder", folder.display().to_string()),
    ];
    let mut text = String::new();
    if summary.stopped {
        text.push_str("stopped before the end; continue with --resume\n");
    }
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&format!("{name:<32}{value}\n"));
    }
    text
}

/// Only where there are several ranks.
fn per_rank(speeds: &[f64]) -> String {
    if speeds.len() < 2 { String::new() } else { each(speeds, |speed| format!("{speed:.0}")) }
}

fn cores(cores: &[f64]) -> String {
    each(cores, |cores| format!("{cores:.2}"))
}

/// Only where devices tell.
fn devices(shares: &[Option<f64>]) -> String {
    let known: Vec<f64> = shares.iter().flatten().copied().collect();
    each(&known, |share| format!("{:.0} %", share * 100.0))
}

fn memory(bytes: &[u64]) -> String {
    let mebibytes: Vec<f64> =
        bytes.iter().map(|bytes| *bytes as f64 / f64::from(1 << 20)).collect();
    each(&mebibytes, |mebibytes| format!("{mebibytes:.0} MiB"))
}

/// Figures of few ranks one by one, and of many the least and the greatest.
fn each(values: &[f64], words: impl Fn(f64) -> String) -> String {
    match values {
        [] => String::new(),
        values if values.len() <= 8 => {
            values.iter().map(|value| words(*value)).collect::<Vec<_>>().join(", ")
        }
        values => {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(0.0, f64::max);
            format!("{} to {}", words(least), words(most))
        }
    }
}

/// Only where there is a run to compare with.
fn against(summary: &Summary) -> String {
    match (summary.speed_up, summary.scaling_efficiency) {
        (Some(speed_up), Some(efficiency)) => {
            format!("{speed_up:.2} / {:.0} %", efficiency * 100.0)
        }
        _ => String::new(),
    }
}
