//! TensorBoard itself reads what the writer of event files has written.
//!
//! Needs a Python with the package `tensorboard`, named by BONFIRE_TENSORBOARD_PYTHON, and says
//! SKIPPED without it, unless BONFIRE_REQUIRE_TENSORBOARD=1.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_report::tensorboard::{EventWriter, Histogram};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NEEDED: &str = "needs a Python with the package tensorboard (BONFIRE_TENSORBOARD_PYTHON)";

/// Reads a folder with TensorBoard; `None` if there is none.
fn read(folder: &Path) -> Option<Value> {
    let Some(python) = std::env::var_os("BONFIRE_TENSORBOARD_PYTHON") else {
        let required = std::env::var("BONFIRE_REQUIRE_TENSORBOARD").as_deref() == Ok("1");
        assert!(!required, "{NEEDED}");
        // Past the test harness, which hides what a passing test prints.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {NEEDED}");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_events.py");
    let output = Command::new(python).arg(script).arg(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// A time of whole quarter seconds, which a float holds exactly.
fn wall(step: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000) + Duration::from_millis(250) * step as u32
}

fn steps(events: &Value) -> Vec<u64> {
    let events = events.as_array().unwrap().iter();
    events.map(|event| event["step"].as_u64().unwrap()).collect()
}

#[test]
fn scalars_histograms_and_texts_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = EventWriter::create(folder.path(), None).unwrap();
    let values = [0.5, -0.1, f64::NAN, f64::INFINITY, 1e300, 0.0];
    for (step, value) in (0..).zip(values) {
        events.scalar("loss/train", step, wall(step), value).unwrap();
    }
    events.scalar("far", 1 << 40, wall(1), 1.0).unwrap();
    let weights = (-50..50).map(|index| index as f32 * 0.125).chain([f32::NAN]);
    let weights = Histogram::of(weights);
    events.histogram("weights", 3, wall(3), &weights).unwrap();
    events.histogram("nothing", 3, wall(3), &Histogram::of([])).unwrap();
    let long = "# Größe\n\n| a | b |\n".repeat(20_000);
    events.text("config", 0, wall(0), &long).unwrap();
    events.text("empty", 0, wall(0), "").unwrap();
    drop(events);

    let Some(found) = read(folder.path()) else { return };
    assert_eq!(found["file_version"], 2.0);
    let losses = found["scalars"]["loss/train"].as_array().unwrap();
    let read: Vec<&Value> = losses.iter().map(|loss| &loss["value"]).collect();
    assert_eq!(
        read,
        [
            &json!(0.5),
            &json!(f64::from(-0.1f32)),
            &json!("nan"),
            &json!("inf"),
            &json!("inf"),
            &json!(0.0)
        ]
    );
    assert_eq!(losses[3]["wall_time"], 1_700_000_000.75);
    assert_eq!(steps(&found["scalars"]["loss/train"]), [0, 1, 2, 3, 4, 5]);
    assert_eq!(steps(&found["scalars"]["far"]), [1 << 40]);

    let histogram = &found["histograms"]["weights"][0];
    let expected = json!({"step": 3, "wall_time": 1_700_000_000.75, "min": -6.25, "max": 6.125,
        "num": 100.0, "sum": weights.sum(), "sum_squares": weights.sum_squares()});
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&histogram[key], value, "{key}");
    }
    let (limits, counts): (Vec<f64>, Vec<f64>) = weights.buckets().into_iter().unzip();
    let read = histogram["limits"].as_array().unwrap().iter();
    let read: Vec<f64> = read.map(|limit| limit.as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(read, limits);
    assert_eq!(histogram["counts"], json!(counts));
    assert_eq!(counts.iter().sum::<f64>(), 100.0);
    assert_eq!(found["histograms"]["nothing"][0]["num"], 0.0);

    assert_eq!(found["shown"]["weights"]["shapes"], json!([[counts.len(), 3]]));
    assert_eq!(found["shown"]["weights"]["ascends"], true);
    assert_eq!(found["shown"]["nothing"]["shapes"], json!([[0, 3]]));

    assert_eq!(found["texts"]["config"], json!([{"step": 0, "text": long, "shape": []}]));
    assert_eq!(found["texts"]["empty"][0]["text"], "");
    let plugins = [("loss/train", "scalars"), ("weights", "histograms"), ("config", "text")];
    for (tag, plugin) in plugins {
        assert_eq!(found["shown"][tag]["plugin"], plugin, "{tag}");
    }
}

#[test]
fn a_resumed_run_replaces_the_steps_that_it_takes_again() {
    let folder = tempfile::tempdir().unwrap();
    let write = |purge_step: Option<u64>, steps: std::ops::Range<u64>, value: f64| {
        let mut events = EventWriter::create(folder.path(), purge_step).unwrap();
        for step in steps {
            events.scalar("loss", step, wall(step), value).unwrap();
            events.histogram("weights", step, wall(step), &Histogram::of([1.0])).unwrap();
            events.text("note", step, wall(step), "words").unwrap();
        }
        events.path().to_owned()
    };
    let killed = write(None, 0..10, 1.0);
    // The process was killed in the midst of a record.
    let bytes = std::fs::read(&killed).unwrap();
    std::fs::write(&killed, [&bytes[..], &bytes[..30]].concat()).unwrap();
    // Both within the same second as the first.
    write(Some(6), 6..8, 2.0);
    write(Some(7), 7..9, 3.0);

    let Some(found) = read(folder.path()) else { return };
    let losses = &found["scalars"]["loss"];
    assert_eq!(steps(losses), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let values: Vec<f64> =
        losses.as_array().unwrap().iter().map(|loss| loss["value"].as_f64().unwrap()).collect();
    assert_eq!(values, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0]);
    assert_eq!(steps(&found["histograms"]["weights"]), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    for tag in ["loss", "weights", "note"] {
        assert_eq!(found["shown"][tag]["steps"], json!([0, 1, 2, 3, 4, 5, 6, 7, 8]), "{tag}");
    }
}
