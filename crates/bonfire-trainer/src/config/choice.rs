//! Enums that are written as one of a few words.

use super::suggest::nearest;

/// An enum whose variants are written as words in a configuration.
pub(super) trait Choice: Copy + Sized + 'static {
    /// Every variant with the word for it, in the order in which messages list them.
    const WORDS: &'static [(&'static str, Self)];
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
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal $(| $alias:literal)*,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
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
