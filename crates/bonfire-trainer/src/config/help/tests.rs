use serde_json::Value;

use super::{ModelKeys, json_schema, reference};

/// Every key with its schema, sections left out.
fn keys(schema: &Value, prefix: &str) -> Vec<(String, Value)> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return Vec::new();
    };
    let all = properties.iter().flat_map(|(key, schema)| {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let table = schema.get("anyOf").and_then(|options| options.as_array()?.last());
        let inner = keys(schema.get("items").or(table).unwrap_or(schema), &path);
        if inner.is_empty() { vec![(path, schema.clone())] } else { inner }
    });
    all.collect()
}

/// The number behind "default" in a description.
fn described_default(schema: &Value) -> Option<f64> {
    let text = schema.get("description")?.as_str()?.to_lowercase();
    let words = text.split("default ").nth(1)?;
    let number: String =
        words.chars().take_while(|c| c.is_ascii_digit() || ".-e".contains(*c)).collect();
    number.trim_end_matches('.').parse().ok()
}

#[test]
fn every_key_is_described_and_descriptions_name_the_defaults_that_hold() {
    let schema = json_schema(&[]);
    let keys = keys(&schema, "");
    assert!(keys.len() > 120, "{}", keys.len());
    let mut compared = 0;
    for (path, key) in &keys {
        let described = key.get("description").and_then(Value::as_str).unwrap_or_default();
        assert!(!described.is_empty(), "{path} has no description");
        let (Some(default), Some(said)) = (key.get("default"), described_default(key)) else {
            continue;
        };
        if let Some(default) = default.as_f64() {
            compared += 1;
            assert_eq!(default, said, "{path}: {described}");
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn nothing_is_null_and_unknown_keys_are_refused() {
    let schema = json_schema(&[]);
    let text = schema.to_string();
    assert!(!text.contains("null"), "{text}");
    for section in ["train", "data", "optimizer"] {
        assert_eq!(schema["properties"][section]["additionalProperties"], false, "{section}");
    }
    assert_eq!(schema["properties"]["model"]["additionalProperties"], true);
    assert_eq!(schema["properties"]["train"]["properties"]["max_epochs"]["default"], 10);
}

#[test]
fn the_reference_has_sections_defaults_and_the_keys_of_models() {
    #[derive(schemars::JsonSchema)]
    #[allow(dead_code, reason = "what counts are the names")]
    struct Keys {
        /// Widths of the layers.
        hidden: Vec<usize>,
    }
    let text = reference(&[ModelKeys::of::<Keys>("mine"), ModelKeys::unknown("other")]);
    for line in [
        "## `[train]`",
        "## `[[optimizer.groups]]`",
        "## `[data.transforms.random_crop]`",
        "| `seed` | integer | `0` |",
        "| `betas` | list of 2 numbers |",
        "## `[model] with kind = \"mine\"`",
        "| `hidden` | list of integers |  | Widths of the layers. |",
    ] {
        assert!(text.contains(line), "{line:?} is missing in\n{text}");
    }
}
