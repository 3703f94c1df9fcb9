//! What a run ran on, for whoever reads of it later.

use crate::device::TrainDevice;
use crate::process::command_line;
use bonfire_comm::ProcessGroup;
use bonfire_trainer::config::Plan;
use serde_json::{Value, json};
use std::fs;

/// Program, machine and ranks of a run, by names that people read.
pub(crate) fn describe(
    group: &ProcessGroup,
    device: &TrainDevice,
    plan: &Plan,
    threads: usize,
) -> Value {
    json!({
        "bonfire": env!("CARGO_PKG_VERSION"),
        "build": if cfg!(debug_assertions) { "development" } else { "release" },
        "command": command_line(),
        "host": line("/proc/sys/kernel/hostname"),
        "system": format!("{} {}", std::env::consts::OS, line("/proc/sys/kernel/osrelease").unwrap_or_default()),
        "processor": field("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_gib": memory_gib(),
        "device": device.describe(plan.precision.mode),
        "engine": group.engine_name(),
        "world size": group.world_size(),
        "machines": group.num_machines(),
        "threads per rank": threads,
    })
}

/// The first line of a file of the system.
fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()?.lines().next().map(str::to_owned)
}

/// The value behind a name and a colon in a file of the system.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn memory_gib() -> Option<f64> {
    let total = field("/proc/meminfo", "MemTotal")?;
    let kib: f64 = total.split_whitespace().next()?.parse().ok()?;
    Some((kib / 1024.0 / 1024.0 * 10.0).round() / 10.0)
}
