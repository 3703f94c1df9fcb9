//! What classes were taken for, as a table whose colours tell the shares.

use super::cards::grouped;
use crate::xml::escaped;
use serde_json::Value;
use std::fmt::Write as _;

/// Most classes that a table shows; of more, only the most frequent mistakes are listed.
const MOST: usize = 50;
/// Mistakes in the list.
const MISTAKES: usize = 5;

/// How often images of a class (rows) were taken for another (columns).
struct Confusion {
    counts: Vec<Vec<f64>>,
    names: Vec<String>,
}

/// The matrix of a summary, if it has a whole one.
pub(super) fn html(summary: &Value) -> String {
    let Some(confusion) = Confusion::of(summary) else { return String::new() };
    let table = if confusion.counts.len() <= MOST { confusion.table() } else { String::new() };
    format!(
        "<section class=\"panel\"><h2>Confusion matrix</h2>\n<p class=\"note\">Rows: the class that an \
         image has. Columns: the class that it was taken for.</p>\n{table}{}</section>\n",
        confusion.mistakes()
    )
}

impl Confusion {
    fn of(summary: &Value) -> Option<Self> {
        let rows = summary.get("confusion_matrix")?.as_array()?;
        let row =
            |row: &Value| row.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
        let counts = rows.iter().map(row).collect::<Option<Vec<_>>>()?;
        if counts.is_empty() || counts.iter().any(|row| row.len() != counts.len()) {
            return None;
        }
        let given = summary.get("class_names").and_then(Value::as_array);
        let name = |index: usize| {
            let name = given.and_then(|names| names.get(index)).and_then(Value::as_str);
            name.map_or_else(|| index.to_string(), str::to_string)
        };
        let names = (0..counts.len()).map(name).collect();
        Some(Self { counts, names })
    }

    fn table(&self) -> String {
        let dense = if self.counts.len() > 12 { " dense" } else { "" };
        let heads: String = self
            .names
            .iter()
            .map(|name| format!("<th scope=\"col\"><span>{}</span></th>", escaped(name)))
            .collect();
        let mut text = format!(
            "<div class=\"wide\"><table class=\"heat{dense}\">\n<thead><tr><th></th>{heads}\
             <th scope=\"col\"><span>recall</span></th></tr></thead>\n<tbody>\n"
        );
        for (index, (name, row)) in self.names.iter().zip(&self.counts).enumerate() {
            let sum: f64 = row.iter().sum();
            let cells: String = row
                .iter()
                .enumerate()
                .map(|(column, count)| cell(*count, sum, index == column))
                .collect();
            let recall =
                if sum > 0.0 { format!("{:.1} %", 100.0 * row[index] / sum) } else { "–".into() };
            // Writing into a string cannot fail.
            let _ = writeln!(
                text,
                "<tr><th scope=\"row\">{}</th>{cells}<td class=\"recall\">{recall}</td></tr>",
                escaped(name)
            );
        }
        text + "</tbody></table></div>\n"
    }

    /// The most frequent mistakes.
    fn mistakes(&self) -> String {
        let mut all: Vec<(f64, usize, usize)> = Vec::new();
        for (row, counts) in self.counts.iter().enumerate() {
            let wrong =
                counts.iter().enumerate().filter(|(column, count)| *column != row && **count > 0.0);
            all.extend(wrong.map(|(column, count)| (*count, row, column)));
        }
        all.sort_by(|one, other| other.0.total_cmp(&one.0));
        let words = |&(count, row, column): &(f64, usize, usize)| {
            let (class, taken) = (escaped(&self.names[row]), escaped(&self.names[column]));
            format!("{class} for {taken} ({})", grouped(count))
        };
        let listed: Vec<String> = all.iter().take(MISTAKES).map(words).collect();
        if listed.is_empty() {
            return String::new();
        }
        format!("<p>Most often mistaken: {}.</p>\n", listed.join("; "))
    }
}

/// A count, in the colour of its share of the row. Few mistakes are to be seen too, so that the colour
/// grows like a root.
fn cell(count: f64, sum: f64, right: bool) -> String {
    let share = if sum > 0.0 { (count / sum).clamp(0.0, 1.0) } else { 0.0 };
    if share == 0.0 {
        return format!("<td class=\"none\">{}</td>", grouped(count));
    }
    let (class, alpha) = if right { ("right", share) } else { ("wrong", share.sqrt()) };
    let strong = if alpha > 0.55 { " strong" } else { "" };
    format!("<td class=\"{class}{strong}\" style=\"--share:{alpha:.2}\">{}</td>", grouped(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_are_named_and_mistakes_are_listed() {
        let summary =
            json!({"confusion_matrix": [[90, 10], [0, 0]], "class_names": ["<cat>", "dog"]});
        let html = html(&summary);
        assert!(html.contains("<th scope=\"row\">&lt;cat&gt;</th>") && html.contains("90.0 %"));
        assert!(html.contains("&lt;cat&gt; for dog (10)"), "{html}");
        assert!(html.contains("class=\"right strong\" style=\"--share:0.90\">90<"));
        assert!(html.contains("–"), "a class without images has no recall");
    }

    #[test]
    fn large_matrices_are_only_summed_up_and_broken_ones_left_out() {
        let mut counts = vec![vec![0; 51]; 51];
        counts[3][7] = 5;
        let large = html(&json!({"confusion_matrix": counts}));
        assert!(!large.contains("<table") && large.contains("3 for 7 (5)"), "{large}");
        for broken in
            [json!({}), json!({"confusion_matrix": [[1, 2]]}), json!({"confusion_matrix": []})]
        {
            assert_eq!(html(&broken), "");
        }
    }
}
