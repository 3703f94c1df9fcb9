//! What the profiler found.

use crate::xml::escaped;
use serde_json::Value;

/// A section with a line for each finding of `verdict.json`.
pub(super) fn html(verdict: &Value) -> String {
    let findings = verdict.get("findings").and_then(Value::as_array);
    let texts = findings.into_iter().flatten().filter_map(|finding| finding.get("text")?.as_str());
    let items: String = texts.map(|text| format!("<li>{}</li>\n", escaped(text))).collect();
    if items.is_empty() {
        return items;
    }
    format!(
        "<section class=\"panel\"><h2>What the profiler found</h2>\n\
         <ul class=\"verdict\">\n{items}</ul></section>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_are_lines() {
        let verdict =
            json!({"findings": [{"text": "rank 1 is <slow>", "rank": 1}, {"text": "late"}]});
        let html = html(&verdict);
        assert!(html.contains("<li>rank 1 is &lt;slow&gt;</li>\n<li>late</li>"), "{html}");
        for nothing in [json!(null), json!({}), json!({"findings": []})] {
            assert_eq!(super::html(&nothing), "");
        }
    }
}
