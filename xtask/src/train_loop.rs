//! Runs of the program `train_loop` of `benches`.

use crate::Result;
use crate::cargo::{command, output};
use serde_json::Value;
use std::path::Path;

/// Runs a loop with one thread a rank, its ranks over `transport`, and reads its line of JSON.
pub(crate) fn figures(program: &Path, transport: &str, args: &[String]) -> Result<Value> {
    let mut command = command(program);
    command.args(args).env("BONFIRE_TRANSPORT", transport).env("RAYON_NUM_THREADS", "1");
    let printed = output(&mut command)?;
    serde_json::from_str(&printed).map_err(|error| {
        format!("train_loop {} printed {printed:?}: {error}", args.join(" ")).into()
    })
}

/// A number of a loop's figures.
pub(crate) fn number(figures: &Value, key: &str) -> Result<f64> {
    figures[key].as_f64().ok_or_else(|| format!("{figures} has no number {key}").into())
}

/// The middle one of the values, the upper of two; NaN without any.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// `words` as arguments.
pub(crate) fn arguments(words: &str) -> Vec<String> {
    words.split_whitespace().map(str::to_string).collect()
}
