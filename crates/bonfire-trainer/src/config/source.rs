//! Where each key of a configuration was written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Excerpt, Problem};

/// The place at which one key was written.
#[derive(Clone, Debug)]
struct Place {
    origin: String,
    line: Option<usize>,
    text: Arc<str>,
    key: Range<usize>,
    value: Range<usize>,
    /// What the environment has put there, where that was read as another type than a string.
    words: Option<String>,
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
    /// Records the place of every key in a parsed document.
    pub(super) fn of_document(origin: &str, text: &Arc<str>, document: &DeTable<'_>) -> Self {
        let mut source = Self { origin: origin.to_owned(), places: BTreeMap::new() };
        source.record_table("", text, document);
        source
    }

    /// Notes that `key`, with all that lies beneath it, now comes from `--set key=value`.
    pub(super) fn overridden(&mut self, key: &str, written: &str) {
        self.forget(key);
        let end = written.find('=').unwrap_or(written.len());
        let place = Place {
            origin: format!("--set {written}"),
            line: None,
            text: written.into(),
            key: 0..end,
            value: (end + 1).min(written.len())..written.len(),
            words: None,
        };
        self.places.insert(key.to_owned(), place);
    }

    /// Notes the words that the environment has put at `key`.
    pub(super) fn has_words(&mut self, key: &str, words: String) {
        if let Some(place) = self.places.get_mut(key) {
            place.words = Some(words);
        }
    }

    /// The words that the environment has put at `key`, where they were read as another type than a string.
    pub(super) fn words(&self, key: &str) -> Option<&str> {
        self.places.get(key)?.words.as_deref()
    }

    /// Forgets `key` and all that lies beneath it.
    pub(super) fn forget(&mut self, key: &str) {
        self.places.retain(|place, _| !is_at_or_beneath(place, key));
    }

    /// Takes over where `key`, and all that lies beneath it, was written in another source.
    pub(super) fn adopt(&mut self, key: &str, other: &Self) {
        let places = other.places.iter().filter(|(place, _)| is_at_or_beneath(place, key));
        self.places.extend(places.map(|(key, place)| (key.clone(), place.clone())));
    }

    /// Takes the name of another source.
    pub(super) fn rename(&mut self, other: &Self) {
        self.origin.clone_from(&other.origin);
    }

    /// Makes a problem located at the value of `key`, or of the nearest table around it.
    pub(super) fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        self.located(key, message, |place| place.value.clone())
    }

    /// Makes a problem located at the name of `key`.
    pub(super) fn problem_of_name(&self, key: &str, message: impl Into<String>) -> Problem {
        self.located(key, message, |place| place.key.clone())
    }

    fn located(
        &self,
        key: &str,
        message: impl Into<String>,
        range: impl Fn(&Place) -> Range<usize>,
    ) -> Problem {
        let found = self.nearest(key);
        let place = found.map(|(place, _)| place);
        // What is missing in a table is told at the table's name.
        let range = |(place, exact): (&Place, bool)| match exact {
            true => range(place),
            false => place.key.clone(),
        };
        Problem {
            key: key.to_owned(),
            message: message.into(),
            line: place.and_then(|place| place.line),
            origin: place.map_or_else(|| self.name(), |place| place.origin.clone()),
            excerpt: found.map(|found| Excerpt { text: found.0.text.clone(), range: range(found) }),
        }
    }

    /// Names the whole source.
    pub(super) fn name(&self) -> String {
        if self.origin.is_empty() { "configuration".to_owned() } else { self.origin.clone() }
    }

    /// The place of a key or of what is around it, and whether it is the key's own.
    fn nearest(&self, key: &str) -> Option<(&Place, bool)> {
        let own = self.places.get(key).map(|place| (place, true));
        let mut parents = key.rmatch_indices(['.', '[']).map(|(end, _)| &key[..end]);
        own.or_else(|| parents.find_map(|key| self.places.get(key)).map(|place| (place, false)))
    }

    fn record_table(&mut self, prefix: &str, text: &Arc<str>, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = join(prefix, key.get_ref());
            let place = Place {
                origin: self.origin.clone(),
                line: Some(line_at(text, key.span().start)),
                text: text.clone(),
                key: key.span(),
                value: value.span(),
                words: None,
            };
            self.places.insert(path.clone(), place);
            self.record_value(&path, text, value);
        }
    }

    fn record_value(&mut self, path: &str, text: &Arc<str>, value: &Spanned<DeValue<'_>>) {
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

fn is_at_or_beneath(place: &str, key: &str) -> bool {
    let beneath = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
    place.strip_prefix(key).is_some_and(beneath)
}

/// Appends `key` to the dotted path `prefix`.
pub(super) fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}

/// Counts the line, from 1, of the byte at `offset`.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}
