//! `train.fast_dev_run`: a run that only tries everything once.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// `true` for one step and one batch of validation, or a number of them; `false` for a run as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastDevRun(pub Option<u64>);

impl Serialize for FastDevRun {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(steps) => steps.serialize(serializer),
            None => false.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for FastDevRun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = FastDevRun;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a number of steps")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<FastDevRun, E> {
                Ok(FastDevRun(value.then_some(1)))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<FastDevRun, E> {
                let unexpected = serde::de::Unexpected::Signed(value);
                let steps = u64::try_from(value);
                steps.map(of_steps).map_err(|_| E::invalid_value(unexpected, &self))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<FastDevRun, E> {
                Ok(of_steps(value))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// No steps are no such run.
fn of_steps(steps: u64) -> FastDevRun {
    FastDevRun((steps > 0).then_some(steps))
}

impl JsonSchema for FastDevRun {
    fn schema_name() -> Cow<'static, str> {
        "FastDevRun".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "boolean" }, { "type": "integer" }] })
    }
}
