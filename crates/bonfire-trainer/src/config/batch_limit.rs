//! How many of the batches are used.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

use super::resolve::Resolver;

/// A number of batches (an integer), or a share of all there are (a number with a point, up to 1.0).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchLimit {
    /// So many.
    Batches(u64),
    /// This part of them, in (0, 1].
    Share(f64),
}

impl BatchLimit {
    /// Returns how many of `total` batches are used; at least one.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::Batches(batches) => batches.min(total),
            Self::Share(share) => ((total as f64 * share) as u64).clamp(1.min(total), total),
        }
    }

    /// Checks the limits of a limit.
    pub(super) fn resolve(
        written: Option<Self>,
        key: &str,
        resolver: &mut Resolver<'_>,
    ) -> Option<Self> {
        match written? {
            Self::Batches(batches) => drop(resolver.one_or_more(key, batches)),
            Self::Share(share) => {
                let ok = share > 0.0 && share <= 1.0;
                let remedy = "must be a number of batches, or a share above 0.0 and at most 1.0";
                resolver.check(key, share, ok, remedy);
            }
        }
        written
    }
}

impl fmt::Display for BatchLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batches(batches) => batches.fmt(f),
            Self::Share(share) => share.fmt(f),
        }
    }
}

impl Serialize for BatchLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Batches(batches) => batches.serialize(serializer),
            Self::Share(share) => share.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for BatchLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Limit;

        impl Visitor<'_> for Limit {
            type Value = BatchLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of batches, or a share of them such as 0.1")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<BatchLimit, E> {
                let unexpected = serde::de::Unexpected::Signed(value);
                let batches = u64::try_from(value);
                batches.map(BatchLimit::Batches).map_err(|_| E::invalid_value(unexpected, &self))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<BatchLimit, E> {
                Ok(BatchLimit::Batches(value))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<BatchLimit, E> {
                Ok(BatchLimit::Share(value))
            }
        }

        deserializer.deserialize_any(Limit)
    }
}

impl JsonSchema for BatchLimit {
    fn schema_name() -> Cow<'static, str> {
        "BatchLimit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer" }, { "type": "number" }] })
    }
}

#[cfg(test)]
mod tests {
    use super::BatchLimit::{Batches, Share};

    #[test]
    fn a_limit_never_leaves_nothing_and_never_asks_for_more_than_there_is() {
        assert_eq!([Batches(3).of(10), Batches(30).of(10)], [3, 10]);
        assert_eq!([Share(0.25).of(10), Share(0.01).of(10), Share(1.0).of(10)], [2, 1, 10]);
        assert_eq!([Batches(3).of(0), Share(0.5).of(0)], [0, 0]);
    }
}
