//! Scalars as JSON. Real numbers are kept with all their bits, beside a readable value.

use super::CheckpointError;
use bonfire_tensor::state::Scalar;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    Bool(bool),
    Uint(u64),
    Int(i64),
    Float { bits: String, about: String },
    Text(String),
}

pub(super) fn encode(scalars: &BTreeMap<String, Scalar>) -> Result<Vec<u8>, CheckpointError> {
    let written: BTreeMap<&String, Written> = scalars
        .iter()
        .map(|(name, value)| {
            let value = match value {
                Scalar::Bool(value) => Written::Bool(*value),
                Scalar::Uint(value) => Written::Uint(*value),
                Scalar::Int(value) => Written::Int(*value),
                Scalar::Float(value) => Written::Float {
                    bits: format!("{:016x}", value.to_bits()),
                    about: value.to_string(),
                },
                Scalar::Text(value) => Written::Text(value.clone()),
            };
            (name, value)
        })
        .collect();
    serde_json::to_vec_pretty(&written).map_err(|error| CheckpointError::Encode {
        what: "the scalars of the state",
        reason: error.to_string(),
    })
}

pub(super) fn decode(
    bytes: &[u8],
    path: &Path,
) -> Result<BTreeMap<String, Scalar>, CheckpointError> {
    let invalid = |reason: String| CheckpointError::Invalid {
        path: path.to_path_buf(),
        kind: "list of scalars",
        reason,
    };
    let written: BTreeMap<String, Written> =
        serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
    let mut scalars = BTreeMap::new();
    for (name, value) in written {
        let value = match value {
            Written::Bool(value) => Scalar::Bool(value),
            Written::Uint(value) => Scalar::Uint(value),
            Written::Int(value) => Scalar::Int(value),
            Written::Text(value) => Scalar::Text(value),
            Written::Float { bits, .. } => {
                let bits = u64::from_str_radix(&bits, 16)
                    .map_err(|error| invalid(format!("{name}: {error}")))?;
                Scalar::Float(f64::from_bits(bits))
            }
        };
        scalars.insert(name, value);
    }
    Ok(scalars)
}
