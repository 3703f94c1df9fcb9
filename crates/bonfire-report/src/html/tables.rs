//! Tables of names and values.

use super::cards::{percent, words};
use crate::number::{bytes, duration, short};
use crate::xml::escaped;
use serde_json::Value;

/// Fields of a summary that the report shows elsewhere.
const ELSEWHERE: [&str; 4] = ["confusion_matrix", "class_names", "stopped", "stopped_early"];

/// Parts of the names of fields that tell what the run cost.
const COSTS: [&str; 8] =
    ["time", "seconds", "duration", "_s", "bytes", "images_per_s", "speed", "memory"];

/// All other fields of the summary: what the run cost, and what it came to.
pub(super) fn summary(summary: &Value) -> String {
    let Some(fields) = summary.as_object() else { return String::new() };
    let (mut costs, mut results) = (Vec::new(), Vec::new());
    for (key, value) in fields.iter().filter(|(key, _)| !ELSEWHERE.contains(&key.as_str())) {
        let rows = if is_cost(key) { &mut costs } else { &mut results };
        flatten(key, value, rows);
    }
    table("Timings and memory", &costs) + &table("Results", &results)
}

fn is_cost(key: &str) -> bool {
    COSTS
        .iter()
        .any(|part| if part.starts_with('_') { key.ends_with(part) } else { key.contains(part) })
}

/// What the run ran on.
pub(super) fn environment(environment: &Value) -> String {
    let Some(fields) = environment.as_object() else { return String::new() };
    let mut rows = Vec::new();
    for (key, value) in fields {
        flatten(key, value, &mut rows);
    }
    table("Environment", &rows)
}

fn table(title: &str, rows: &[(String, String)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let row = |(name, value): &(String, String)| {
        format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escaped(name), escaped(value))
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<section class=\"panel\"><h2>{title}</h2>\n\
         <table class=\"pairs\"><tbody>\n{rows}</tbody></table></section>\n"
    )
}

/// Adds a row for every value; those inside objects have the names of both.
fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                flatten(&format!("{name}.{key}"), value, rows);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (index, value) in list.iter().enumerate() {
                let own = value.get("name").and_then(Value::as_str);
                let own = own.map_or_else(|| index.to_string(), str::to_string);
                let mut inner = value.clone();
                // The name is in the names of the others.
                inner.as_object_mut().map(|fields| fields.remove("name"));
                flatten(&format!("{name}.{own}"), &inner, rows);
            }
        }
        _ => rows.push((named(name), valued(name, value))),
    }
}

/// A name without underscores and without the unit that its value shows.
fn named(name: &str) -> String {
    let known =
        [("images_per_s", "images/s"), ("parameters_xxh3", "fingerprint of the parameters (xxh3)")];
    if let Some((_, words)) = known.iter().find(|(key, _)| *key == name) {
        return words.to_string();
    }
    let name =
        name.strip_prefix("seconds_").map_or(name.to_string(), |rest| format!("time_{rest}"));
    let name = name.replace("images_per_s", "images/s").replace("comm_wait", "communication");
    name.strip_suffix("_s").unwrap_or(&name).replace('.', ": ").replace('_', " ")
}

/// A value with the unit that its name tells.
fn valued(name: &str, value: &Value) -> String {
    let Some(number) = value.as_f64() else { return words(value) };
    let last = name.rsplit('.').next().unwrap_or(name);
    match name {
        _ if last.contains("per_s") && !last.contains("per_step") => {
            format!("{} images/s", short(number))
        }
        _ if name.starts_with("time_share") || last.ends_with("accuracy") => percent(number),
        _ if last.ends_with("_s") || last.starts_with("seconds") => duration(number),
        _ if name.contains("bytes") || last == "memory" => bytes(number),
        _ => words(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_tell_the_units() {
        let cases = [
            ("seconds_to_first_step", json!(3.25), "time to first step", "3.2 s"),
            ("time_share.comm_wait", json!(0.0625), "time share: communication", "6.25 %"),
            ("bytes_sent_per_step", json!(1536.0), "bytes sent per step", "1.5 KiB"),
            ("memory_bytes.optimizer", json!(1048576), "memory bytes: optimizer", "1 MiB"),
            ("valid_accuracy", json!(0.9), "valid accuracy", "90 %"),
            ("images_per_s", json!(5210.4), "images/s", "5.21k images/s"),
            ("later_field", json!([1, "two"]), "later field", "1, two"),
            ("skipped_steps", json!(null), "skipped steps", "–"),
        ];
        for (key, value, name, words) in cases {
            assert_eq!((named(key).as_str(), valued(key, &value).as_str()), (name, words));
        }
    }

    #[test]
    fn objects_and_lists_of_them_are_flat() {
        let html = summary(&json!({
            "variants": [{"name": "ema", "valid_loss": 0.5}],
            "skipped_files": {"train": 3},
            "confusion_matrix": [[1]],
        }));
        assert!(html.contains("variants: ema: valid loss</th><td>0.5<"), "{html}");
        assert!(html.contains("skipped files: train") && !html.contains("confusion"));
        assert_eq!(summary(&json!([])), "");
        assert_eq!(environment(&json!({})), "");
    }
}
