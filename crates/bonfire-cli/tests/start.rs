//! How long a run takes to its first step is counted from its own start.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::process::Command;

#[test]
fn a_program_that_bonfire_replaced_is_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    // As `cargo run` does, the shell becomes the program after a while.
    let status = Command::new("sh")
        .args(["-c", "sleep 2; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_bonfire")])
        .args(["train", "configs/digits.toml", "--set", "train.max_epochs=1"])
        .args(["--set", "schedule.warmup_epochs=0", "--out"])
        .arg(&out)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .unwrap();
    assert!(status.status.success(), "{status:?}");
    let summary = std::fs::read(out.join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    let seconds = summary["seconds_to_first_step"].as_f64().unwrap();
    assert!(seconds > 0.0 && seconds < 1.9, "{seconds}");
}
