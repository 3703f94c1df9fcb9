//! Enums that are written as one of a few words.

use serde_json::json;

use super::suggest::nearest;

/// An enum whose variants are written as words in a configuration.
pub(super) trait Choice: Copy + Sized + 'static {
    /// Every variant with the word for it, in the order in which messages list them.
    const WORDS: &'static [(&'static str, Self)];
}

/// The schema of a word with what each of them means.
pub(super) fn schema_of(words: &[(&str, &str)]) -> schemars::Schema {
    let words: Vec<_> = words
        .iter()
        .map(|(word, meaning)| json!({ "const": word, "description": meaning.trim() }))
        .collect();
    schemars::json_schema!({ "type": "string", "oneOf": words })
}

/// Finds the variant for `word`, or says which words are allowed.
pub(super) fn choose<C: Choice>(word: &str) -> Result<C, String> {
    if let Some((_, choice)) = C::WORDS.iter().find(|(name, _)| *name == word) {
        return Ok(*choice);
    }
    let names: Vec<&str> = C::WORDS.iter().map(|(name, _)| *name).collect();
    Err(not_one_of(word, &names))
}

/// Says which words are allowed, and which of them is nearest.
pub(super) fn not_one_of(word: &str, names: &[&str]) -> String {
    let allowed = names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let hint = nearest(word, names).map(|name| format!("; did you mean {name:?}?"));
    format!("{word:?} is not one of {allowed}{}", hint.unwrap_or_default())
}

/// Defines an enum that serde reads as one of the given words, and whose error names all of them. Of
/// several words for a variant the first is written.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident {
        $($(#[doc = $meaning:literal])* $variant:ident = $word:literal $(| $alias:literal)*,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[doc = $meaning])* $variant,)+
        }

        impl $name {
            /// Returns the word that stands for this choice in a configuration.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::config::choice::Choice for $name {
            const WORDS: &'static [(&'static str, Self)] = &[
                $(($word, Self::$variant), $(($alias, Self::$variant),)*)+
            ];
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $crate::config::choice::schema_of(&[
                    $(($word, concat!($($meaning),*)),)+
                ])
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = String::deserialize(deserializer)?;
                $crate::config::choice::choose(&word).map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(super) use choice;
