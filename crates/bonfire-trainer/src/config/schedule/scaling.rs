//! How the learning rate grows with the batch of all ranks.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

use super::super::choice::schema_of;

/// How the learning rate follows the global batch, as written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalingRule {
    /// Not at all (`"none"`).
    None,
    /// In proportion (`"linear"`).
    Linear,
    /// With the square root (`"sqrt"`).
    Sqrt,
    /// By this factor, whatever the batch (a number).
    Factor(f64),
}

/// How the learning rate follows the global batch, resolved for a world size.
///
/// # Reference
/// Goyal et al., "Accurate, Large Minibatch SGD", arXiv:1706.02677, section 2.1 (linear);
/// Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997,
/// section 5 (square root).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LrScaling {
    /// Not at all.
    None,
    /// `global_batch_size / base_batch_size`.
    Linear {
        /// Samples of an optimizer step over all ranks.
        global_batch_size: usize,
        /// Samples that the rate was chosen for; above 0.
        base_batch_size: usize,
    },
    /// `sqrt(global_batch_size / base_batch_size)`.
    Sqrt {
        /// Samples of an optimizer step over all ranks.
        global_batch_size: usize,
        /// Samples that the rate was chosen for; above 0.
        base_batch_size: usize,
    },
    /// This number.
    Factor(f64),
}

impl LrScaling {
    /// Returns what the rate is multiplied by.
    pub fn factor(&self) -> f64 {
        match *self {
            Self::None => 1.0,
            Self::Linear { global_batch_size, base_batch_size } => {
                global_batch_size as f64 / base_batch_size as f64
            }
            Self::Sqrt { global_batch_size, base_batch_size } => {
                (global_batch_size as f64 / base_batch_size as f64).sqrt()
            }
            Self::Factor(factor) => factor,
        }
    }

    pub(super) fn rule(&self) -> ScalingRule {
        match *self {
            Self::None => ScalingRule::None,
            Self::Linear { .. } => ScalingRule::Linear,
            Self::Sqrt { .. } => ScalingRule::Sqrt,
            Self::Factor(factor) => ScalingRule::Factor(factor),
        }
    }

    pub(super) fn base_batch_size(&self) -> Option<usize> {
        match *self {
            Self::Linear { base_batch_size, .. } | Self::Sqrt { base_batch_size, .. } => {
                Some(base_batch_size)
            }
            Self::None | Self::Factor(_) => None,
        }
    }
}

impl fmt::Display for LrScaling {
    /// Writes how the factor comes about: `linear: 512 / 256 = 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let factor = self.factor();
        match self {
            Self::None => f.write_str("none"),
            Self::Linear { global_batch_size, base_batch_size } => {
                write!(f, "linear: {global_batch_size} / {base_batch_size} = {factor}")
            }
            Self::Sqrt { global_batch_size, base_batch_size } => {
                write!(f, "sqrt: sqrt({global_batch_size} / {base_batch_size}) = {factor}")
            }
            Self::Factor(_) => write!(f, "factor {factor}"),
        }
    }
}

impl JsonSchema for ScalingRule {
    fn schema_name() -> Cow<'static, str> {
        "ScalingRule".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let rules = schema_of(&[
            ("none", "Not at all."),
            ("linear", "In proportion."),
            ("sqrt", "With the square root."),
        ]);
        json_schema!({ "anyOf": [rules, { "type": "number" }] })
    }
}

impl Serialize for ScalingRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Linear => serializer.serialize_str("linear"),
            Self::Sqrt => serializer.serialize_str("sqrt"),
            Self::Factor(factor) => serializer.serialize_f64(*factor),
        }
    }
}

impl<'de> Deserialize<'de> for ScalingRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RuleVisitor)
    }
}

struct RuleVisitor;

impl Visitor<'_> for RuleVisitor {
    type Value = ScalingRule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"none\", \"linear\", \"sqrt\" or a number")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<ScalingRule, E> {
        match word {
            "none" => Ok(ScalingRule::None),
            "linear" => Ok(ScalingRule::Linear),
            "sqrt" => Ok(ScalingRule::Sqrt),
            other => {
                let allowed = "\"none\", \"linear\", \"sqrt\" or a number";
                Err(E::custom(format!("{other:?} is not one of {allowed}")))
            }
        }
    }

    fn visit_f64<E: Error>(self, factor: f64) -> Result<ScalingRule, E> {
        Ok(ScalingRule::Factor(factor))
    }

    fn visit_i64<E: Error>(self, factor: i64) -> Result<ScalingRule, E> {
        Ok(ScalingRule::Factor(factor as f64))
    }

    fn visit_u64<E: Error>(self, factor: u64) -> Result<ScalingRule, E> {
        Ok(ScalingRule::Factor(factor as f64))
    }
}
