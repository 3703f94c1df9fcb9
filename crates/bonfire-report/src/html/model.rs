//! What the model is made of, layer by layer.

use crate::number::{bytes, short};
use crate::xml::escaped;
use serde_json::Value;

/// The table of `model_summary.json`, if it has layers.
pub(super) fn html(summary: &Value) -> String {
    let Some(layers) = summary.get("layers").and_then(Value::as_array) else {
        return String::new();
    };
    let rows: String = layers.iter().map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    let heads: String =
        ["layer", "kind", "output", "parameters", "memory", "output memory", "FLOPs"]
            .map(|head| format!("<th scope=\"col\">{head}</th>"))
            .concat();
    format!(
        "<details class=\"panel\"><summary><h2>Model</h2></summary>\n<p class=\"note\">{}</p>\n\
         <div class=\"wide\"><table class=\"layers\">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\
         </tbody></table></div></details>\n",
        totals(summary)
    )
}

fn totals(summary: &Value) -> String {
    let number = |key: &str| summary.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    format!(
        "{} trainable and {} frozen parameters, {} buffer values: {}. A forward pass of {} sample(s) takes {} \
         for the outputs of the layers and {}FLOP.",
        short(number("trainable")),
        short(number("frozen")),
        short(number("buffers")),
        bytes(number("bytes")),
        number("samples"),
        bytes(number("activation_bytes")),
        spaced(number("flops")),
    )
}

/// A number with its letter set off, before a unit.
fn spaced(value: f64) -> String {
    let text = short(value);
    match text.strip_suffix(['k', 'M', 'G']) {
        Some(digits) => format!("{digits} {}", &text[digits.len()..]),
        None => format!("{text} "),
    }
}

fn row(layer: &Value) -> String {
    let text = |key: &str| layer.get(key).and_then(Value::as_str).unwrap_or("–");
    let number = |key: &str| layer.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    let told = layer.get("kind").is_some_and(Value::is_string);
    let output = layer.get("output").and_then(Value::as_array);
    let output = output.filter(|sizes| !sizes.is_empty()).map_or_else(
        || "–".to_owned(),
        |sizes| sizes.iter().map(Value::to_string).collect::<Vec<_>>().join(" × "),
    );
    let only_if_told = |text: String| if told { text } else { "–".to_owned() };
    let cells = [
        text("kind").to_owned(),
        output,
        short(number("parameters")),
        bytes(number("bytes")),
        only_if_told(bytes(number("activation_bytes"))),
        only_if_told(short(number("flops"))),
    ];
    let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
    format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escaped(text("path")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn layers_are_rows_and_those_that_do_not_tell_have_dashes() {
        let html = html(&json!({
            "samples": 1, "trainable": 11_173_962, "frozen": 0, "buffers": 9600, "bytes": 44_734_248,
            "activation_bytes": 1 << 20, "flops": 1_110_000_000u64,
            "layers": [
                {"path": "conv1", "kind": "Conv2d", "output": [1, 64, 32, 32], "parameters": 1728,
                 "bytes": 6912, "activation_bytes": 262_144, "flops": 3_473_408},
                {"path": "<own>", "kind": null, "output": [], "parameters": 5, "bytes": 20,
                 "activation_bytes": 0, "flops": 0},
            ],
        }));
        assert!(html.contains("11.2M trainable") && html.contains("1.11 GFLOP."), "{html}");
        assert!(html.contains("<td>1 × 64 × 32 × 32</td><td>1.73k</td><td>6.8 KiB</td>"), "{html}");
        assert!(
            html.contains("&lt;own&gt;</th><td>–</td><td>–</td><td>5</td><td>20 B</td><td>–</td>")
        );
        assert_eq!(super::html(&json!({})), "");
        assert_eq!(super::html(&json!({"layers": []})), "");
    }
}
