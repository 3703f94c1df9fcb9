//! Where each key of a configuration was written.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Problem;

/// The place at which one key was written.
#[derive(Clone, Debug)]
struct Place {
    origin: String,
    line: Option<usize>,
}

/// Maps dotted keys to the file and line, or the override, that they came from.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    origin: String,
    places: BTreeMap<String, Place>,
}

/// Where a value was written is not part of the value: any two sources are equal.
impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Source {
    /// Records the line of every key in a parsed document.
    pub(super) fn of_document(origin: &str, text: &str, document: &DeTable<'_>) -> Self {
        let mut source = Self { origin: origin.to_owned(), places: BTreeMap::new() };
        source.record_table("", text, document);
        source
    }

    /// Stands for a file that could not be parsed, or a configuration made in code.
    pub(super) fn unlocated(origin: &str) -> Self {
        Self { origin: origin.to_owned(), places: BTreeMap::new() }
    }

    /// Notes that `key`, with all that lies beneath it, now comes from an override.
    pub(super) fn overridden(&mut self, key: &str, origin: &str) {
        self.forget(key);
        self.places.insert(key.to_owned(), Place { origin: origin.to_owned(), line: None });
    }

    /// Forgets `key` and all that lies beneath it.
    pub(super) fn forget(&mut self, key: &str) {
        let beneath = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        self.places.retain(|place, _| !place.strip_prefix(key).is_some_and(beneath));
    }

    /// Makes a problem located where `key`, or the nearest table around it, was written.
    pub(super) fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        let place = self.nearest(key);
        Problem {
            key: key.to_owned(),
            message: message.into(),
            line: place.and_then(|place| place.line),
            origin: place.map_or_else(|| self.name(), |place| place.origin.clone()),
        }
    }

    /// Names the whole source.
    pub(super) fn name(&self) -> String {
        if self.origin.is_empty() { "configuration".to_owned() } else { self.origin.clone() }
    }

    fn nearest(&self, key: &str) -> Option<&Place> {
        let parents = key.rmatch_indices(['.', '[']).map(|(end, _)| &key[..end]);
        std::iter::once(key).chain(parents).find_map(|key| self.places.get(key))
    }

    fn record_table(&mut self, prefix: &str, text: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = join(prefix, key.get_ref());
            let place =
                Place { origin: self.origin.clone(), line: Some(line_at(text, key.span().start)) };
            self.places.insert(path.clone(), place);
            self.record_value(&path, text, value);
        }
    }

    fn record_value(&mut self, path: &str, text: &str, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.record_table(path, text, table),
            DeValue::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    self.record_value(&format!("{path}[{index}]"), text, element);
                }
            }
            _ => {}
        }
    }
}

/// Appends `key` to the dotted path `prefix`.
pub(super) fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}

/// Counts the line, from 1, of the byte at `offset`.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}
