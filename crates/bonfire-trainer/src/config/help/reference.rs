//! The reference of all keys, as Markdown.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::schema::{ModelKeys, json_schema};

/// Writes every section with its keys, their types, defaults and meanings.
pub fn reference(models: &[ModelKeys]) -> String {
    let schema = json_schema(models);
    let mut text = String::from(INTRODUCTION);
    let none = Map::new();
    let properties = properties(&schema).unwrap_or(&none);
    let (sections, top): (Vec<_>, Vec<_>) =
        properties.iter().partition(|(_, schema)| is_section(schema));
    text.push_str("\n## Outside every section\n\n");
    table(&mut text, top.into_iter());
    for (name, schema) in sections {
        section(&mut text, name, schema);
        if name == "model" {
            models.iter().for_each(|model| model_section(&mut text, model));
        }
    }
    text
}

const INTRODUCTION: &str = "\
# Configuration

Every key of a recipe: what it means, its unit and its default. `bonfire config reference` prints this page for a
program's own models, `bonfire config schema` the JSON Schema for editors (for those that know Taplo, begin a
recipe with `#:schema PATH`), and `bonfire config check FILE` tells all that is wrong with a recipe.

`--set section.key=value` overrides a key on the command line. A recipe may be put on top of another with
`extends = \"other.toml\"`: it has the last word on each key, and a section in which it names another `kind` takes
nothing from the other. In strings, `${NAME}` is a variable of the environment, `${NAME:-words}` the words where it
is not set, and `$${` a plain `${`; a string that is nothing but one variable may stand for a number.
";

fn section(text: &mut String, name: &str, schema: &Value) {
    let Some(keys) = keys_of(schema) else { return };
    let title = match schema.get("items") {
        Some(_) => format!("[[{name}]]"),
        None => format!("[{name}]"),
    };
    heading(text, &title, described(schema));
    let none = Map::new();
    let properties = properties(keys).unwrap_or(&none);
    let (sections, plain): (Vec<_>, Vec<_>) =
        properties.iter().partition(|(_, schema)| is_section(schema));
    table(text, plain.into_iter());
    for (key, schema) in sections {
        section(text, &format!("{name}.{key}"), schema);
    }
}

fn model_section(text: &mut String, model: &ModelKeys) {
    let Some(schema) = &model.schema else { return };
    heading(text, &format!("[model] with kind = \"{}\"", model.kind), "");
    if let Some(properties) = properties(schema) {
        table(text, properties.iter());
    }
}

/// Writing into a string cannot fail, here and below.
fn heading(text: &mut String, title: &str, meaning: &str) {
    let _ = write!(text, "\n## `{title}`\n\n");
    // The title says already which section it is.
    let meaning = match meaning.split_once("`: ") {
        Some((section, meaning)) if section.starts_with("`[") => meaning,
        _ => meaning,
    };
    if !meaning.is_empty() {
        let _ = write!(text, "{}\n\n", sentence(meaning));
    }
}

fn table<'a>(text: &mut String, keys: impl Iterator<Item = (&'a String, &'a Value)>) {
    text.push_str("| Key | Type | Default | Meaning |\n|---|---|---|---|\n");
    for (key, schema) in keys {
        let default = schema.get("default").map(|default| format!("`{}`", in_toml(default)));
        let default = default.or_else(|| said_default(described(schema)));
        let _ = writeln!(
            text,
            "| `{key}` | {} | {} | {} |",
            type_of(schema),
            default.unwrap_or_default(),
            described(schema).replace('|', "\\|"),
        );
    }
}

/// The default of a key that depends on others, as far as its description has a word for it.
fn said_default(described: &str) -> Option<String> {
    if described.contains("required") {
        return Some("required".to_owned());
    }
    let (_, behind) = described.split_once("default ")?;
    let end = behind.find([';', ')', '(']).unwrap_or(behind.len());
    let words = behind[..end].trim().trim_end_matches('.');
    let words = words.split(". ").next().unwrap_or(words);
    // "The default" of several words stands before.
    (words.len() <= 40 && !words.is_empty()).then(|| words.replace('|', "\\|"))
}

/// What is said of a key, in one line.
fn described(schema: &Value) -> &str {
    schema.get("description").and_then(Value::as_str).unwrap_or_default()
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

fn is_section(schema: &Value) -> bool {
    keys_of(schema).is_some()
}

/// What of a schema has keys: itself, its elements, or the table that may stand in place of a value.
fn keys_of(schema: &Value) -> Option<&Value> {
    let has_keys = |schema: &&Value| properties(schema).is_some();
    let options = schema.get("anyOf").and_then(Value::as_array);
    let mut options = options.into_iter().flatten();
    Some(schema)
        .filter(has_keys)
        .or_else(|| schema.get("items").filter(has_keys))
        .or_else(|| options.find(has_keys))
}

fn type_of(schema: &Value) -> String {
    let words = |options: &Vec<Value>| {
        let word = |option: &Value| Some(format!("`\"{}\"`", option.get("const")?.as_str()?));
        options.iter().map(word).collect::<Option<Vec<_>>>().map(|words| words.join(", "))
    };
    if let Some(Value::Array(options)) = schema.get("oneOf")
        && let Some(words) = words(options)
    {
        return words;
    }
    if let Some(Value::Array(names)) = schema.get("enum") {
        return names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(Value::Array(options)) = schema.get("anyOf") {
        return options.iter().map(type_of).collect::<Vec<_>>().join(" or ");
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("array") => {
            let item = schema.get("items").map_or_else(String::new, type_of);
            let length =
                schema.get("minItems").filter(|least| schema.get("maxItems") == Some(least));
            match length {
                Some(length) => format!("list of {length} {item}s"),
                None => format!("list of {item}s"),
            }
        }
        Some("object") => "table".to_owned(),
        Some(kind) => kind.to_owned(),
        None => String::new(),
    }
}

fn in_toml(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            format!("[{}]", values.iter().map(in_toml).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}
