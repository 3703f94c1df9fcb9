//! Named numbers as a JSON object that keeps their order.

use super::float::Float;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use std::fmt;

pub(super) fn serialize<S: Serializer>(
    figures: &[(String, f64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(figures.len()))?;
    for (name, value) in figures {
        map.serialize_entry(name, &Float(*value))?;
    }
    map.end()
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(String, f64)>, D::Error> {
    deserializer.deserialize_map(FiguresVisitor)
}

struct FiguresVisitor;

impl<'de> Visitor<'de> for FiguresVisitor {
    type Value = Vec<(String, f64)>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object of numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut figures = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, Float>()? {
            figures.push((name, value.0));
        }
        Ok(figures)
    }
}
