//! Strict deserialization: every unknown key and every type error of a table, not just the first.

use std::cell::Cell;
use std::collections::BTreeSet;

use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde_path_to_error::Segment;
use toml::{Table, Value};

use super::checkpoint::CheckpointSection;
use super::distributed::{DistributedSection, LocalSgdSection};
use super::early_stopping::EarlyStoppingSection;
use super::error::Problem;
use super::profile::ProfileSection;
use super::sections::{
    AverageSection, ClipSection, DataSection, GroupSection, LogSection, ModelSection, Normalize,
    OptimizerSection, PrecisionSection, ScheduleSection,
};
use super::source::{Source, join};
use super::suggest::nearest;
use super::train::TrainSection;
use super::transform_sections::{
    ColorJitterSection, PadSection, RandAugmentSection, RandomCropSection, RandomErasingSection,
    RandomResizedCropSection, RotationSection, TransformsSection, TrivialAugmentSection,
    ValidTransformsSection,
};

/// Reads tables into sections and collects what is wrong with them.
pub(super) struct Reader<'a> {
    source: &'a Source,
    pub(super) problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    /// Starts with no problems.
    pub(super) fn new(source: &'a Source) -> Self {
        Self { source, problems: Vec::new() }
    }

    /// Takes the section `name` out of `document` and reads it; what cannot be read is left out.
    pub(super) fn section<T>(&mut self, document: &mut Table, name: &str) -> T
    where
        T: DeserializeOwned + Default,
    {
        match document.remove(name) {
            None => T::default(),
            Some(Value::Table(table)) => self.read(name, table).unwrap_or_default(),
            Some(other) => {
                let message = format!("{name} = {other}: expected a section [{name}]");
                self.problems.push(self.source.problem(name, message));
                T::default()
            }
        }
    }

    /// Reads the table at the dotted path `prefix`; `None` when nothing of it can be used.
    ///
    /// Serde stops at the first type error, so a key with a wrong value is reported, removed, and
    /// the rest read again.
    pub(super) fn read<T: DeserializeOwned>(&mut self, prefix: &str, table: Table) -> Option<T> {
        let mut remaining = table.clone();
        let mut unknown = BTreeSet::new();
        let mut removed: Vec<Vec<String>> = Vec::new();
        let value = loop {
            let mut ignored = |path: serde_ignored::Path<'_>| {
                unknown.insert(ignored_keys(&path));
            };
            let keys = Value::Table(remaining.clone());
            let keys = serde_ignored::Deserializer::new(keys, &mut ignored);
            let error = match serde_path_to_error::deserialize::<_, T>(keys) {
                Ok(value) => break Some(value),
                Err(error) => error,
            };
            let place = keys_of(error.path());
            if self.take_words(prefix, &place, &mut remaining) {
                continue;
            }
            // An error around a removed key says only that it is missing.
            if !removed.iter().any(|keys| keys.len() > place.len() && keys.starts_with(&place)) {
                self.type_error(prefix, error.path(), error.inner().message());
            }
            match remove(&mut remaining, &place) {
                true => removed.push(place),
                false => break None,
            }
        };
        for keys in unknown {
            self.unknown(prefix, &keys, &table, field_names::<T>());
        }
        value
    }

    /// Lets a key that came from the environment, and was read as a number or a boolean, be the string that its
    /// words are; says whether there was one.
    fn take_words(&self, prefix: &str, place: &[String], table: &mut Table) -> bool {
        let key = place.iter().fold(prefix.to_owned(), |path, key| join(&path, key));
        let Some(words) = self.source.words(&key) else { return false };
        let Some((last, parents)) = place.split_last() else { return false };
        let parent = parents.iter().try_fold(table, |table, key| match table.get_mut(key) {
            Some(Value::Table(inner)) => Some(inner),
            _ => None,
        });
        match parent.and_then(|table| table.get_mut(last)) {
            Some(value) if !value.is_str() => {
                *value = Value::String(words.to_owned());
                true
            }
            _ => false,
        }
    }

    fn type_error(&mut self, prefix: &str, path: &serde_path_to_error::Path, message: &str) {
        let mut key = prefix.to_owned();
        for segment in path.iter() {
            match segment {
                Segment::Map { key: name } => key = join(&key, name),
                Segment::Seq { index } => key.push_str(&format!("[{index}]")),
                Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        let message = format!("{key}: {}", in_plain_words(message));
        self.problems.push(self.source.problem(&key, message));
    }

    fn unknown(&mut self, prefix: &str, keys: &[String], table: &Table, names: &[&str]) {
        let Some((last, parents)) = keys.split_last() else { return };
        let parent = parents.iter().fold(prefix.to_owned(), |path, key| join(&path, key));
        let key = join(&parent, last);
        let known = match (prefix, parents) {
            ("", []) => [names, &section_names()].concat(),
            ("model", []) => [names, &MODEL_KEYS].concat(),
            (_, []) => names.to_vec(),
            _ => names_in(&parent).to_vec(),
        };
        let is_section = prefix.is_empty() && table.get(last).is_some_and(Value::is_table);
        let what = if is_section { "section" } else { "key" };
        let message = format!("unknown {what} {key:?}{}", remedy(last, &known));
        self.problems.push(self.source.problem_of_name(&key, message));
    }
}

/// The keys of tables that lead to an error, up to the first list.
fn keys_of(path: &serde_path_to_error::Path) -> Vec<String> {
    let key = |segment: &Segment| match segment {
        Segment::Map { key } => Some(key.clone()),
        _ => None,
    };
    path.iter().map_while(key).collect()
}

/// Removes a value from tables in tables, and says whether it was there.
fn remove(table: &mut Table, place: &[String]) -> bool {
    match place {
        [] => false,
        [key] => table.remove(key).is_some(),
        [key, rest @ ..] => match table.get_mut(key) {
            Some(Value::Table(inner)) => remove(inner, rest),
            _ => false,
        },
    }
}

/// Says what to write instead of the unknown `word`, given the known names beside it.
fn remedy(word: &str, known: &[&str]) -> String {
    if let Some(name) = nearest(word, known) {
        return format!("; did you mean {name:?}?");
    }
    let elsewhere = SECTIONS.iter().find(|(_, names)| names().contains(&word));
    match elsewhere {
        Some((section, _)) => format!("; did you mean \"{section}.{word}\"?"),
        None if known.is_empty() => "; no keys are known here".to_owned(),
        None => format!("; known are {}", known.join(", ")),
    }
}

/// Lists the keys of one section.
type Names = fn() -> &'static [&'static str];

/// Every section, with the keys in it.
const SECTIONS: &[(&str, Names)] = &[
    ("model", field_names::<ModelSection>),
    ("data", field_names::<DataSection>),
    ("data.normalize", field_names::<Normalize>),
    ("data.transforms", field_names::<TransformsSection>),
    ("data.transforms.pad", field_names::<PadSection>),
    ("data.transforms.random_crop", field_names::<RandomCropSection>),
    ("data.transforms.random_resized_crop", field_names::<RandomResizedCropSection>),
    ("data.transforms.rotation", field_names::<RotationSection>),
    ("data.transforms.color_jitter", field_names::<ColorJitterSection>),
    ("data.transforms.rand_augment", field_names::<RandAugmentSection>),
    ("data.transforms.trivial_augment", field_names::<TrivialAugmentSection>),
    ("data.transforms.random_erasing", field_names::<RandomErasingSection>),
    ("data.valid_transforms", field_names::<ValidTransformsSection>),
    ("data.valid_transforms.pad", field_names::<PadSection>),
    ("train", field_names::<TrainSection>),
    ("optimizer", field_names::<OptimizerSection>),
    ("optimizer.groups", field_names::<GroupSection>),
    ("schedule", field_names::<ScheduleSection>),
    ("precision", field_names::<PrecisionSection>),
    ("clip", field_names::<ClipSection>),
    ("average", field_names::<AverageSection>),
    ("early_stopping", field_names::<EarlyStoppingSection>),
    ("distributed", field_names::<DistributedSection>),
    ("distributed.local_sgd", field_names::<LocalSgdSection>),
    ("checkpoint", field_names::<CheckpointSection>),
    ("log", field_names::<LogSection>),
    ("profile", field_names::<ProfileSection>),
];

/// Keys of `[model]` that are not the model's own.
const MODEL_KEYS: [&str; 3] = ["kind", "weights", "reset_head"];

/// The sections at the top of a file.
fn section_names() -> Vec<&'static str> {
    SECTIONS.iter().map(|(name, _)| *name).filter(|name| !name.contains('.')).collect()
}

fn names_in(section: &str) -> &'static [&'static str] {
    let section = section.split('[').next().unwrap_or(section);
    SECTIONS.iter().find(|(name, _)| *name == section).map_or(&[], |(_, names)| names())
}

/// The keys on the way to an ignored value.
fn ignored_keys(path: &serde_ignored::Path<'_>) -> Vec<String> {
    use serde_ignored::Path;
    match path {
        Path::Root => Vec::new(),
        Path::Map { parent, key } => {
            let mut keys = ignored_keys(parent);
            keys.push(key.clone());
            keys
        }
        Path::Seq { parent, index } => {
            let mut keys = ignored_keys(parent);
            if let Some(last) = keys.last_mut() {
                last.push_str(&format!("[{index}]"));
            }
            keys
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => ignored_keys(parent),
    }
}

/// Replaces Rust's type names in a message of serde by words for those who write configurations.
fn in_plain_words(message: &str) -> String {
    let Some((head, expected)) = message.rsplit_once("expected ") else {
        return message.to_owned();
    };
    let words = match expected {
        "u8" => "an integer from 0 to 255",
        "u16" | "u32" | "u64" | "usize" => "an integer, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        other => other,
    };
    format!("{head}expected {words}")
}

/// Returns the names of the fields of a struct, as serde knows them.
fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let names = Cell::new(&[][..]);
    // The probe never yields a value; what counts is what it is asked for.
    let _ = T::deserialize(Probe(&names));
    names.get()
}

/// A deserializer that notes which fields it is asked for, then gives up.
struct Probe<'a>(&'a Cell<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("a probe has no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.set(fields);
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
