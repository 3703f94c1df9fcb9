//! `--set key=value`: changes of single keys on top of a file.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::error::{Excerpt, Problem};
use super::source::Source;

/// Pairs of keys of which a configuration has at most one.
const EXCLUSIVE: [(&str, &str); 6] = [
    ("train.max_epochs", "train.max_steps"),
    ("data.batch_size", "data.global_batch_size"),
    ("schedule.warmup_steps", "schedule.warmup_epochs"),
    ("schedule.warmup_start", "schedule.warmup_start_factor"),
    ("train.overfit_batches", "train.limit_train_batches"),
    ("train.overfit_batches", "train.limit_val_batches"),
];

/// Applies overrides in order, and returns what is wrong with those that cannot be applied.
pub(super) fn apply(
    document: &mut Table,
    source: &mut Source,
    overrides: &[String],
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut set = Vec::new();
    for text in overrides {
        match parse(text).and_then(|(key, value)| insert(document, key, value).map(|()| key)) {
            Ok(key) => {
                source.overridden(key, text);
                set.push(key.to_owned());
            }
            Err(Rejected { key, message }) => {
                let excerpt = Some(Excerpt { text: text.as_str().into(), range: 0..text.len() });
                let origin = format!("--set {text}");
                problems.push(Problem { key, excerpt, ..Problem::of_source(&origin, message) });
            }
        }
    }
    replace_excluded(document, source, &set);
    problems
}

/// Drops keys that exclude one of those that were `set` on top of them.
pub(super) fn replace_excluded(document: &mut Table, source: &mut Source, set: &[String]) {
    let set: BTreeSet<&str> = set.iter().map(String::as_str).collect();
    for (one, other) in EXCLUSIVE {
        replace(document, source, &set, one, other);
        replace(document, source, &set, other, one);
    }
}

/// Why an override cannot be applied.
struct Rejected {
    key: String,
    message: String,
}

impl Rejected {
    fn new(key: &str, message: impl Into<String>) -> Self {
        Self { key: key.to_owned(), message: message.into() }
    }
}

/// Splits `key=value`; the value is TOML, or else a string.
fn parse(text: &str) -> Result<(&str, Value), Rejected> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(Rejected::new(text, format!("{text:?} has no \"=\"; write key=value")));
    };
    let (key, value) = (key.trim(), value.trim());
    if key.split('.').any(str::is_empty) {
        let message =
            format!("{key:?} is no key; write names joined by dots, like train.max_steps");
        return Err(Rejected::new(key, message));
    }
    Ok((key, read_value(value)))
}

/// Reads a value as TOML, or else as a string.
pub(super) fn read_value(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Sets a dotted key, and makes the tables on its way.
fn insert(document: &mut Table, key: &str, value: Value) -> Result<(), Rejected> {
    let mut table = document;
    let mut start = 0;
    while let Some(length) = key[start..].find('.') {
        let end = start + length;
        let next = table.entry(&key[start..end]).or_insert_with(|| Value::Table(Table::new()));
        table = match next {
            Value::Table(table) => table,
            other => {
                let parent = &key[..end];
                let message =
                    format!("{key} cannot be set: {parent} = {other} is no table of keys");
                return Err(Rejected::new(key, message));
            }
        };
        start = end + 1;
    }
    table.insert(key[start..].to_owned(), value);
    Ok(())
}

/// Drops `other` from the file when an override set only `one` of the two.
fn replace(
    document: &mut Table,
    source: &mut Source,
    set: &BTreeSet<&str>,
    one: &str,
    other: &str,
) {
    if !set.contains(one) || set.contains(other) {
        return;
    }
    let Some((section, key)) = other.split_once('.') else { return };
    if let Some(Value::Table(table)) = document.get_mut(section) {
        table.remove(key);
        source.forget(other);
    }
}
