//! What the profiler found.

use super::cards::words;
use crate::xml::escaped;
use serde_json::Value;

/// Keys under which an object holds its findings, and a finding its words.
const LISTS: [&str; 4] = ["lines", "findings", "verdict", "verdicts"];
const WORDS: [&str; 5] = ["text", "line", "message", "verdict", "finding"];

/// A section with a line for each finding.
pub(super) fn html(verdict: &Value) -> String {
    let items: String =
        lines(verdict).iter().map(|line| format!("<li>{}</li>\n", escaped(line))).collect();
    if items.is_empty() {
        return items;
    }
    format!(
        "<section class=\"panel\"><h2>What the profiler found</h2>\n\
         <ul class=\"verdict\">\n{items}</ul></section>\n"
    )
}

/// The findings of a list, of an object that has one, or of words alone.
fn lines(verdict: &Value) -> Vec<String> {
    match verdict {
        Value::Null => Vec::new(),
        Value::Array(list) => list.iter().map(line).collect(),
        Value::Object(object) => match LISTS.iter().find_map(|key| object.get(*key)) {
            Some(inner) => lines(inner),
            None => object.iter().map(|(key, value)| format!("{key}: {}", words(value))).collect(),
        },
        other => vec![words(other)],
    }
}

fn line(finding: &Value) -> String {
    let text = WORDS.iter().find_map(|key| finding.get(key)?.as_str());
    text.map_or_else(|| words(finding), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_have_several_shapes() {
        let expected = ["rank 1 is slow", "data is late"];
        assert_eq!(lines(&json!(expected)), expected);
        assert_eq!(lines(&json!({"lines": expected, "steps": 10})), expected);
        let objects =
            json!({"findings": [{"text": expected[0], "rank": 1}, {"message": expected[1]}]});
        assert_eq!(lines(&objects), expected);
        assert_eq!(lines(&json!("fine <here>")), ["fine <here>"]);
        assert!(html(&json!("fine <here>")).contains("fine &lt;here&gt;"));
        assert_eq!(html(&json!(null)), "");
        assert_eq!(html(&json!([])), "");
    }
}
