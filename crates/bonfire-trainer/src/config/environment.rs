//! `${NAME}` in the strings of a configuration.

use toml::{Table, Value};

use super::error::Problem;
use super::overrides::read_value;
use super::source::{Source, join};

/// Puts variables of the environment into all strings of a document, and returns what is wrong with those
/// that cannot be filled in.
///
/// `${NAME}` is the variable's value, `${NAME:-words}` the words where it is not set or empty, `$${` a
/// plain `${`. A string that is nothing but one variable is read as TOML, as the value of an override is, and
/// its words are kept for a key that wants a string.
pub(super) fn substitute(
    document: &mut Table,
    source: &mut Source,
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut fill = |key: &str, value: &mut Value| {
        if let Value::String(text) = value {
            match filled(text, &variable) {
                Ok(None) => {}
                Ok(Some((filled, words))) => {
                    if !filled.is_str() {
                        source.has_words(key, words);
                    }
                    *value = filled;
                }
                Err(message) => problems.push(source.problem(key, format!("{key}: {message}"))),
            }
        }
    };
    in_table("", document, &mut fill);
    problems
}

fn in_table(prefix: &str, table: &mut Table, fill: &mut impl FnMut(&str, &mut Value)) {
    for (key, value) in table {
        in_value(&join(prefix, key), value, fill);
    }
}

fn in_value(key: &str, value: &mut Value, fill: &mut impl FnMut(&str, &mut Value)) {
    match value {
        Value::Table(table) => in_table(key, table, fill),
        Value::Array(elements) => {
            for (index, element) in elements.iter_mut().enumerate() {
                in_value(&format!("{key}[{index}]"), element, fill);
            }
        }
        value => fill(key, value),
    }
}

/// The value of a string with its variables filled in, and its words; `None` if it has none.
fn filled(
    text: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Option<(Value, String)>, String> {
    let (mut result, mut rest) = (String::new(), text);
    let (mut found, mut words) = (0, text.len());
    while let Some(start) = rest.find("${") {
        found += 1;
        if rest[..start].ends_with('$') {
            result.push_str(&rest[..start - 1]);
            result.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        result.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let end = inside.find('}').ok_or("\"${\" has no \"}\"; write $${ for a plain ${")?;
        if inside[..end].contains("${") {
            return Err(format!(
                "\"${{{}}}\": a variable in the words of another is not filled in; write them out",
                &inside[..end]
            ));
        }
        result.push_str(&value_of(&inside[..end], variable)?);
        words -= end + 3;
        rest = &inside[end + 1..];
    }
    result.push_str(rest);
    Ok(match (found, words) {
        (0, _) => None,
        (1, 0) => Some((read_value(&result), result)),
        _ => Some((Value::String(result.clone()), result)),
    })
}

fn value_of(inside: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let (name, words) = match inside.split_once(":-") {
        Some((name, words)) => (name, Some(words)),
        None => (inside, None),
    };
    let is_name = |name: &str| {
        !name.is_empty()
            && name.chars().all(|letter| letter == '_' || letter.is_ascii_alphanumeric())
    };
    if !is_name(name) {
        return Err(format!(
            "\"${{{inside}}}\" is no variable of the environment; write ${{NAME}}"
        ));
    }
    match (variable(name).filter(|value| words.is_none() || !value.is_empty()), words) {
        (Some(value), _) => Ok(value),
        (None, Some(words)) => Ok(words.to_owned()),
        (None, None) => Err(format!(
            "the environment variable {name} is not set; export it, or write ${{{name}:-value}}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled_in(text: &str) -> Result<Option<Value>, String> {
        filled(text, &|name| match name {
            "HOME" => Some("/home/ada".to_owned()),
            "BATCH" => Some("64".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
        .map(|filled| filled.map(|(value, _)| value))
    }

    #[test]
    fn variables_are_filled_in_wherever_they_stand() {
        let string = |text: &str| Ok(Some(Value::String(text.to_owned())));
        assert_eq!(filled_in("data"), Ok(None));
        assert_eq!(filled_in("${HOME}/data"), string("/home/ada/data"));
        assert_eq!(filled_in("${HOME}"), string("/home/ada"));
        assert_eq!(filled_in("${BATCH}"), Ok(Some(Value::Integer(64))));
        assert_eq!(filled_in("b${BATCH}"), string("b64"));
        assert_eq!(filled_in("${LR:-0.1}"), Ok(Some(Value::Float(0.1))));
        assert_eq!(filled_in("${EMPTY:-none}-${HOME}"), string("none-/home/ada"));
        assert_eq!(filled_in("a$${HOME}$"), string("a${HOME}$"));
    }

    #[test]
    fn what_cannot_be_filled_in_is_told() {
        let message = |text: &str| filled_in(text).unwrap_err();
        assert!(
            message("${DATA}/x").contains("DATA is not set; export it, or write ${DATA:-value}")
        );
        assert!(message("${HOME").contains("has no \"}\""));
        assert!(message("${DATA:-${HOME}/data}").contains("write them out"));
        assert!(message("${a b}").contains("\"${a b}\" is no variable"));
    }
}
