//! Whether a run continues the one that a checkpoint was made of.

use super::CheckpointError;
use std::collections::BTreeMap;
use std::fmt;

/// A key whose value has changed since a checkpoint was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// Its value in the checkpoint.
    pub saved: String,
    /// Its value in this run.
    pub running: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, saved, running } = self;
        write!(f, "was saved with {key} = {saved}, this run has {running}")
    }
}

/// What a change of a key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// Nothing: ranks and their shares, and what has no influence on numbers.
    Nothing,
    /// Another course from here on, of the same model over the same data.
    Change,
    /// Another run.
    Other,
}

/// Compares configurations, and returns what has changed but may.
///
/// # Errors
/// [`CheckpointError::Configuration`] with every key that makes it another run.
pub(crate) fn compare(
    saved: &BTreeMap<String, String>,
    running: &BTreeMap<String, String>,
) -> Result<Vec<Difference>, CheckpointError> {
    let value = |map: &BTreeMap<String, String>, key: &str| {
        map.get(key).cloned().unwrap_or_else(|| "not set".to_string())
    };
    let keys = saved.keys().chain(running.keys().filter(|key| !saved.contains_key(*key)));
    let differences = keys.filter_map(|key| {
        let (saved, running) = (value(saved, key), value(running, key));
        (saved != running).then(|| Difference { key: key.clone(), saved, running })
    });
    let (mut changes, mut others) = (Vec::new(), Vec::new());
    for difference in differences {
        match meaning(&difference.key) {
            Meaning::Nothing => {}
            Meaning::Change => changes.push(difference),
            Meaning::Other => others.push(difference),
        }
    }
    match others.is_empty() {
        true => Ok(changes),
        false => Err(CheckpointError::Configuration { differences: others }),
    }
}

fn meaning(key: &str) -> Meaning {
    const NOTHING: [&str; 16] = [
        "world_size",
        "name",
        "log",
        "checkpoint",
        "distributed",
        "data.batch_size",
        "training.batch_size",
        "training.batches_per_rank",
        "train.device",
        "train.log_every_n_steps",
        "train.check_val_every_n_epochs",
        "train.detect_anomaly",
        "train.metrics",
        "train.limit_val_batches",
        "train.num_sanity_val_steps",
        "profile",
    ];
    const CHANGES: [&str; 8] = [
        "train",
        "optimizer",
        "schedule",
        "clip",
        "average",
        "early_stopping",
        "data.global_batch_size",
        "label_smoothing",
    ];
    // What the state of an optimizer means depends on these.
    const OTHERS: [&str; 2] = ["optimizer.kind", "optimizer.momentum_correction"];
    let under = |parent: &str| {
        key == parent || key.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.'))
    };
    if OTHERS.into_iter().any(under) {
        Meaning::Other
    } else if NOTHING.into_iter().any(under) {
        Meaning::Nothing
    } else if CHANGES.into_iter().any(under) {
        Meaning::Change
    } else {
        // Seed, model, data and their order, number types, and whatever there will be.
        Meaning::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn ranks_may_change_rates_are_told_and_another_model_is_refused() {
        let saved = map(&[("world_size", "2"), ("optimizer.lr", "0.1"), ("seed", "1")]);
        let running = map(&[("world_size", "3"), ("optimizer.lr", "0.2"), ("seed", "1")]);
        let changes = compare(&saved, &running).unwrap();
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].to_string(), "was saved with optimizer.lr = 0.1, this run has 0.2");
        let running = map(&[("seed", "2"), ("model.depth", "8"), ("optimizer.lr", "0.2")]);
        let error = compare(&saved, &running).unwrap_err().to_string();
        assert!(error.contains("seed = 1") && error.contains("model.depth = not set"), "{error}");
        assert!(!error.contains("optimizer.lr"), "{error}");
    }
}
