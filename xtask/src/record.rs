//! Records of measurements in `benches/runs`.

use crate::Result;
use crate::cargo::{command, output, root};
use std::path::PathBuf;

/// Writes `benches/runs/<name>-<date>.md`: what was measured, of which commit, on which processor.
///
/// A second record of a day gets a number behind the date.
pub(crate) fn write(name: &str, figures: &str) -> Result<PathBuf> {
    let date = time::OffsetDateTime::now_utc().date();
    let folder = root().join("benches/runs");
    std::fs::create_dir_all(&folder)?;
    let path = free_path(|suffix| folder.join(format!("{name}-{date}{suffix}.md")));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let text = format!(
        "# {name}, {date}\n\n\
         - commit: {}\n- compiler: {}\n- processor: {}, {cores} cores\n\n{figures}",
        commit()?,
        output(command("rustc").arg("--version"))?.trim(),
        processor(),
    );
    std::fs::write(&path, text)?;
    println!("\nrecorded in {}", path.strip_prefix(root()).unwrap_or(&path).display());
    Ok(path)
}

fn free_path(path: impl Fn(String) -> PathBuf) -> PathBuf {
    let suffixes = std::iter::once(String::new()).chain((2..).map(|n| format!("-{n}")));
    suffixes.map(&path).find(|path| !path.exists()).unwrap_or_else(|| path(String::new()))
}

fn commit() -> Result<String> {
    let commit = output(command("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    let changes = output(command("git").args(["status", "--porcelain"]))?;
    let state = if changes.is_empty() { "" } else { " with uncommitted changes" };
    Ok(format!("{}{state}", commit.trim()))
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| "unknown".to_string(), |(_, name)| name.trim().to_string())
}
