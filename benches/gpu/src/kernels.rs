//! Time of each kernel, as Burn itself takes it: with a wait after each, so the sum is more than a step.

use crate::throughput::Training;
use crate::{Result, SectionArgs};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;

const STEPS: usize = 2;
/// Kernels that are told by name.
const SHOWN: usize = 20;
const LOG: &str = "kernels.log";
/// Set in the process whose kernels are timed.
const INNER: &str = "GPU_CHECK_KERNELS";

/// Runs itself in a folder with settings that make Burn write the times down.
pub(crate) fn run(args: &SectionArgs) -> Result<Value> {
    if std::env::var_os(INNER).is_some() {
        return inner(args);
    }
    let folder = tempfile::tempdir()?;
    // Kernels that sections before have compiled are taken from the disk.
    let settings = format!(
        "[compilation]\ncache = true\n[profiling]\nlogger = {{ level = \"medium\", file = \"{LOG}\" }}\n"
    );
    std::fs::write(folder.path().join("cubecl.toml"), settings)?;
    let output = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INNER, "1")
        .current_dir(folder.path())
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the process whose kernels are timed: {}", output.status).into());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().last().ok_or("it found nothing")?;
    Ok(serde_json::from_str(line)?)
}

fn inner(args: &SectionArgs) -> Result<Value> {
    let device = args.device.device()?;
    let mut training = Training::new(args.precision, args.batch, args.image, &device)?;
    for _ in 0..3 {
        training.step()?;
    }
    training.wait()?;
    let before = std::fs::metadata(LOG).map_or(0, |log| log.len() as usize);
    for _ in 0..STEPS {
        training.step()?;
    }
    training.wait()?;
    let log = std::fs::read(LOG).unwrap_or_default();
    let log = String::from_utf8_lossy(log.get(before..).unwrap_or_default()).into_owned();
    let mut kernels: BTreeMap<String, (f64, u32)> = BTreeMap::new();
    for (time, name) in log.lines().filter_map(entry) {
        let kernel = kernels.entry(name).or_default();
        kernel.0 += time;
        kernel.1 += 1;
    }
    let total: f64 = kernels.values().map(|(time, _)| time).sum();
    let mut sorted: Vec<(String, (f64, u32))> = kernels.into_iter().collect();
    sorted.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let steps = STEPS as f64;
    let shown = sorted.iter().take(SHOWN).map(|(name, (time, count))| {
        json!({
            "kernel": name,
            "us_per_step": time / steps,
            "launches_per_step": f64::from(*count) / steps,
            "share": time / total.max(f64::MIN_POSITIVE),
        })
    });
    let launches: u32 = sorted.iter().map(|(_, (_, count))| count).sum();
    Ok(json!({
        "us_per_step": total / steps,
        "launches_per_step": f64::from(launches) / steps,
        "kernels": shown.collect::<Vec<_>>(),
    }))
}

/// Microseconds and name of a line like `| 12.3µs    | name`.
fn entry(line: &str) -> Option<(f64, String)> {
    let (_, rest) = line.split_once("| ")?;
    let (time, name) = rest.split_once(" | ").or_else(|| rest.split_once("| "))?;
    let time = time.trim();
    let (number, unit) = time.split_at(time.find(|c: char| c != '.' && !c.is_ascii_digit())?);
    let factor = match unit {
        "ns" => 1e-3,
        "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    // Of a long description, what tells kernels apart.
    let name: String = name.trim().chars().take(100).collect();
    Some((number.parse::<f64>().ok()? * factor, name))
}

#[cfg(test)]
mod tests {
    use super::entry;

    #[test]
    fn a_line_of_the_log_is_read() {
        assert_eq!(entry("[x] | 12.5µs     | matmul<f16>"), Some((12.5, "matmul<f16>".into())));
        assert_eq!(entry("| 1.5ms | a"), Some((1500.0, "a".into())));
        assert_eq!(entry("| not measured | a"), None);
        assert_eq!(entry("Executing a"), None);
    }
}
