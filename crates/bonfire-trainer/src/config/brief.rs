//! Tables that may be written as the value of their main key alone.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Visitor};
use serde::de::{DeserializeOwned, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess};

/// A table of which most people set one key only: `random_crop = 32` is
/// `random_crop = { size = 32 }`.
pub(super) trait Brief: DeserializeOwned {
    /// The value of the main key.
    type Main: DeserializeOwned;

    /// What to write, for messages.
    const EXPECTED: &'static str;

    /// Makes the table of the value of its main key, or nothing.
    fn brief(main: Self::Main) -> Option<Self>;
}

/// Reads a table, or the value of its main key.
pub(super) fn brief<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Brief,
{
    deserializer.deserialize_any(TableOrMain(PhantomData))
}

/// The schema of what [`brief`] reads.
pub(super) struct Briefly<T>(PhantomData<T>);

impl<T: Brief<Main: JsonSchema> + JsonSchema> JsonSchema for Briefly<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Brief{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (main, table) = (generator.subschema_for::<T::Main>(), generator.subschema_for::<T>());
        json_schema!({ "anyOf": [main, table] })
    }
}

struct TableOrMain<T>(PhantomData<T>);

impl<T: Brief> TableOrMain<T> {
    fn main<'de, E: Error>(value: impl IntoDeserializer<'de, E>) -> Result<Option<T>, E> {
        T::Main::deserialize(value.into_deserializer()).map(T::brief)
    }
}

impl<'de, T: Brief> Visitor<'de> for TableOrMain<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Self::main(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Self::main(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Self::main(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Self::main(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        T::Main::deserialize(SeqAccessDeserializer::new(seq)).map(T::brief)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}
