//! The headline figures.

use super::Input;
use crate::history::{Phase, Row};
use crate::number::{duration, plain, short};
use crate::xml::escaped;
use serde_json::Value;

/// A figure with what it is and what is worth knowing of it.
struct Card {
    label: String,
    value: String,
    note: String,
}

/// The cards of what is known.
pub(super) fn html(input: &Input) -> String {
    let all =
        [accuracy(input), loss(input), speed(input), speed_up(input), time(input), ranks(input)];
    let cards: String = all.into_iter().flatten().map(|card| card.html()).collect();
    if cards.is_empty() { cards } else { format!("<section class=\"cards\">\n{cards}</section>\n") }
}

impl Card {
    fn new(label: impl Into<String>, value: impl Into<String>) -> Self {
        Self { label: label.into(), value: value.into(), note: String::new() }
    }

    fn html(&self) -> String {
        let (label, value) = (escaped(&self.label), escaped(&self.value));
        let note = match self.note.as_str() {
            "" => String::new(),
            note => format!("<div class=\"note\">{}</div>", escaped(note)),
        };
        format!(
            "<div class=\"card\"><div class=\"label\">{label}</div>\
             <div class=\"value\">{value}</div>{note}</div>\n"
        )
    }
}

/// A number of the summary.
pub(super) fn number(input: &Input, key: &str) -> Option<f64> {
    input.summary.as_ref()?.get(key)?.as_f64()
}

/// The figure of the test set, or else of the last validation, with its name.
fn judged(input: &Input, figure: &str) -> Option<(String, f64)> {
    let of_test = number(input, &format!("test_{figure}"));
    if let Some(value) = of_test {
        return Some((format!("test {figure}"), value));
    }
    let last = || valid_rows(input).filter_map(|row| row.figure(figure)).next_back();
    let value = number(input, &format!("valid_{figure}")).or_else(last)?;
    Some((format!("validation {figure}"), value))
}

fn valid_rows(input: &Input) -> impl DoubleEndedIterator<Item = &Row> {
    input.rows.iter().filter(|row| row.phase == Phase::Valid)
}

fn accuracy(input: &Input) -> Option<Card> {
    let (label, value) = judged(input, "accuracy")?;
    let figures = valid_rows(input).filter_map(|row| Some((row.step, row.figure("accuracy")?)));
    let best = figures.max_by(|one, other| one.1.total_cmp(&other.1));
    let note = best.filter(|(_, best)| *best > value);
    let note = note.map(|(step, best)| format!("best validation {} at step {step}", percent(best)));
    Some(Card { note: note.unwrap_or_default(), ..Card::new(label, percent(value)) })
}

fn loss(input: &Input) -> Option<Card> {
    let (label, value) = judged(input, "loss")?;
    let last = || {
        let mut train = input.rows.iter().rev().filter(|row| row.phase == Phase::Train);
        train.find_map(|row| row.figure("loss"))
    };
    let train = number(input, "train_loss").or_else(last);
    let note = train.map_or(String::new(), |train| format!("training {}", short(train)));
    Some(Card { note, ..Card::new(label, crate::number::significant(value, 4)) })
}

fn speed(input: &Input) -> Option<Card> {
    let last = || input.rows.iter().rev().find_map(|row| row.images_per_s);
    let speed = number(input, "images_per_s").or_else(last)?;
    let ranks = world_size(input);
    let note = match ranks {
        Some(ranks) if ranks > 1.0 => format!("{} for each rank", short(speed / ranks)),
        _ => String::new(),
    };
    Some(Card { note, ..Card::new("images/s, all ranks", grouped(speed)) })
}

/// How much faster the run was than its baseline, from the ratio or from the baseline's speed.
fn speed_up(input: &Input) -> Option<Card> {
    let given = ["speed_up", "speedup"].iter().find_map(|key| number(input, key));
    let baseline = number(input, "baseline_images_per_s").filter(|baseline| *baseline > 0.0);
    let computed = || Some(number(input, "images_per_s")? / baseline?);
    let factor = given.or_else(computed)?;
    let note = match world_size(input) {
        Some(ranks) if ranks > 1.0 => {
            format!("over the baseline, {} % of {ranks} ranks", plain(100.0 * factor / ranks, 0))
        }
        _ => "over the baseline".to_string(),
    };
    Some(Card { note, ..Card::new("speed-up", format!("{} ×", plain(factor, 2))) })
}

fn time(input: &Input) -> Option<Card> {
    let keys = ["duration_s", "seconds", "duration_seconds"];
    let written = || Some(input.rows.last()?.time_s - input.rows.first()?.time_s);
    let given = keys.iter().find_map(|key| number(input, key));
    let seconds = given.or_else(written).filter(|seconds| *seconds >= 0.0)?;
    let steps = number(input, "steps").or_else(|| Some(input.rows.last()?.step as f64));
    let epochs = number(input, "epochs").or_else(|| Some(input.rows.last()?.epoch as f64));
    let count = |count: f64, what: &str| {
        format!("{} {what}{}", grouped(count), if count == 1.0 { "" } else { "s" })
    };
    let parts =
        [epochs.map(|epochs| count(epochs, "epoch")), steps.map(|steps| count(steps, "step"))];
    let note = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    Some(Card { note, ..Card::new("duration", duration(seconds)) })
}

fn ranks(input: &Input) -> Option<Card> {
    let ranks = world_size(input)?;
    Some(Card { note: "world size".to_string(), ..Card::new("ranks", short(ranks)) })
}

fn world_size(input: &Input) -> Option<f64> {
    let seen = || input.rows.iter().map(|row| row.ranks.len()).max().filter(|ranks| *ranks > 0);
    number(input, "world_size").or_else(|| seen().map(|ranks| ranks as f64))
}

/// A share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{} %", plain(share * 100.0, 2))
}

/// A count with its thousands apart, or a short one where that would be long.
pub(super) fn grouped(count: f64) -> String {
    if !(10.0..1e9).contains(&count) {
        return short(count);
    }
    let digits = format!("{count:.0}");
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|group| std::str::from_utf8(group).ok())
        .collect();
    // A narrow space that does not break: neither comma nor point, which mean different things.
    groups.join("\u{202f}")
}

/// A number or words of JSON, in short.
pub(super) fn words(value: &Value) -> String {
    match value {
        Value::Null => "–".to_string(),
        Value::Bool(true) => "yes".to_string(),
        Value::Bool(false) => "no".to_string(),
        Value::String(words) => words.clone(),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(count), _) => grouped(count as f64),
            (_, Some(value)) => crate::number::significant(value, 5),
            _ => number.to_string(),
        },
        Value::Array(list) => {
            let shown: Vec<String> = list.iter().take(32).map(words).collect();
            let more = if list.len() > 32 {
                format!(" and {} more", list.len() - 32)
            } else {
                String::new()
            };
            shown.join(", ") + &more
        }
        Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_are_grouped() {
        let cases = [(0.25, "0.25"), (999.4, "999"), (123_456.0, "123\u{202f}456"), (1e12, "1e12")];
        for (count, words) in cases {
            assert_eq!(grouped(count), words);
        }
    }

    #[test]
    fn a_speed_up_is_given_or_follows_from_the_baseline() {
        let of = |summary: Value| html(&Input { summary: Some(summary), ..Input::default() });
        let computed =
            of(json!({"images_per_s": 300.0, "baseline_images_per_s": 100.0, "world_size": 4}));
        assert!(computed.contains(">3 ×<") && computed.contains("75 % of 4 ranks"), "{computed}");
        assert!(of(json!({"speed_up": 1.875})).contains(">1.88 ×<"));
        assert!(!of(json!({"images_per_s": 3.0, "baseline_images_per_s": 0})).contains("speed-up"));
    }

    #[test]
    fn the_test_set_comes_before_validation() {
        let summary = json!({"valid_accuracy": 0.5, "test_accuracy": 0.934_1, "valid_loss": 0.25});
        let cards = html(&Input { summary: Some(summary), ..Input::default() });
        assert!(cards.contains("test accuracy") && cards.contains("93.41 %"), "{cards}");
        assert!(cards.contains("validation loss") && !cards.contains("validation accuracy"));
        assert_eq!(html(&Input::default()), "");
    }
}
