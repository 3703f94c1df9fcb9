//! The JSON Schema of configurations, by which editors complete and check them.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::super::plan::Plan;
use super::super::run_config::RunConfig;

/// The keys of `[model]` for one `kind`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelKeys {
    /// The kind.
    pub kind: String,
    /// The schema of its keys; `None` when nothing is known of them.
    pub schema: Option<Value>,
}

impl ModelKeys {
    /// Takes the keys of a type.
    pub fn of<T: JsonSchema>(kind: &str) -> Self {
        Self { kind: kind.to_owned(), schema: Some(schema_of::<T>()) }
    }

    /// Notes a kind of which nothing but the name is known.
    pub fn unknown(kind: &str) -> Self {
        Self { kind: kind.to_owned(), schema: None }
    }
}

/// What a configuration needs to resolve, whose defaults are none.
const LEAST: &str =
    "[model]\nkind = \"mlp\"\n[data]\npath = \"data\"\n[optimizer]\nkind = \"sgd\"\n";
/// Keys that [`LEAST`] sets, and one that follows from another.
const WITHOUT_DEFAULT: [&str; 4] = ["model.kind", "data.path", "optimizer.kind", "name"];

/// Writes the JSON Schema (draft 7) of a configuration whose `model.kind` is one of `models`.
pub fn json_schema(models: &[ModelKeys]) -> Value {
    let mut schema = schema_of::<RunConfig>();
    add_defaults(&mut schema);
    close(&mut schema);
    let extends = json!({
        "type": "string",
        "description": "File that this one is put on top of, relative to this one. A section with another \
                        `kind` takes nothing from it.",
    });
    schema["properties"]["extends"] = extends;
    schema["title"] = "Bonfire recipe".into();
    let model = &mut schema["properties"]["model"];
    model["additionalProperties"] = true.into();
    let kinds: Vec<&str> = models.iter().map(|model| model.kind.as_str()).collect();
    model["properties"]["kind"]["enum"] = json!(kinds);
    let conditions = models.iter().filter_map(|model| {
        let keys = model.schema.as_ref()?;
        let kind = json!({ "properties": { "kind": { "const": model.kind } } });
        Some(json!({ "if": kind, "then": { "properties": keys.get("properties")? } }))
    });
    model["allOf"] = conditions.collect();
    schema
}

/// The schema of a type, with all that it consists of in place.
pub(super) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    without_null(&mut schema);
    schema
}

/// Takes out that a value may be null, for which TOML has no word, and widths of integers. Descriptions
/// become plain lines.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.remove("format");
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = in_plain_words(text);
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|kind| kind != "null");
                if let [one] = types.as_slice() {
                    object["type"] = one.clone();
                }
            }
            let is_null = |option: &Value| option.get("type").is_some_and(|kind| kind == "null");
            if let Some(Value::Array(options)) = object.get_mut("anyOf") {
                options.retain(|option| !is_null(option));
                if let [Value::Object(one)] = options.as_slice() {
                    let one = one.clone();
                    object.remove("anyOf");
                    one.into_iter().for_each(|(key, value)| {
                        object.entry(key).or_insert(value);
                    });
                }
            }
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            object.values_mut().for_each(without_null);
        }
        Value::Array(values) => values.iter_mut().for_each(without_null),
        _ => {}
    }
}

/// What a description says outside of rustdoc: in one line a paragraph, without its links.
fn in_plain_words(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    let text = paragraphs.collect::<Vec<_>>().join(" ");
    let (mut plain, mut rest) = (String::new(), text.as_str());
    // [`Name`](path::Name) is `Name`.
    while let Some((before, behind)) = rest.split_once("](")
        && let Some((target, after)) = behind.split_once(')')
        && let Some((head, name)) = before.rsplit_once('[')
        && target.contains("::")
    {
        plain.push_str(head);
        plain.push_str(name);
        rest = after;
    }
    plain + rest
}

/// Forbids unknown keys.
fn close(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    if let Some(Value::Array(options)) = object.get_mut("anyOf") {
        options.iter_mut().for_each(close);
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(close);
        object.insert("additionalProperties".to_owned(), false.into());
    }
    if let Some(items) = object.get_mut("items") {
        close(items);
    }
}

/// Notes the defaults, which are what resolving fills in.
fn add_defaults(schema: &mut Value) {
    let resolved = RunConfig::from_toml_str(LEAST, "")
        .and_then(|config| Plan::resolve(&config, 1))
        .map(|plan| plan.to_run_config())
        .ok()
        .and_then(|config| serde_json::to_value(config).ok());
    if let (Some(Value::Object(resolved)), Some(properties)) =
        (resolved, schema.get_mut("properties").and_then(Value::as_object_mut))
    {
        note("", &resolved, properties);
    }
}

fn note(prefix: &str, resolved: &Map<String, Value>, properties: &mut Map<String, Value>) {
    for (key, value) in resolved {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let Some(Value::Object(property)) = properties.get_mut(key) else { continue };
        match (value, property.get_mut("properties").and_then(Value::as_object_mut)) {
            (Value::Object(inner), Some(properties)) => note(&path, inner, properties),
            (value, _) if !WITHOUT_DEFAULT.contains(&path.as_str()) => {
                property.insert("default".to_owned(), value.clone());
            }
            _ => {}
        }
    }
}
