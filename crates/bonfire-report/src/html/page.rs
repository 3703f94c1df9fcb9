//! The page around the parts.

use super::state::State;
use super::{Input, cards, confusion, figures, model, tables, verdict};
use crate::chart::INLINE_CSS;
use crate::xml::escaped;

const STYLE: &str = include_str!("style.css");
/// Shows the values under the pointer; the page is whole without it.
const HOVER: &str = include_str!("hover.js");

pub(super) fn render(input: &Input) -> String {
    let name = escaped(&input.name);
    let part = |value: &Option<serde_json::Value>, html: fn(&serde_json::Value) -> String| {
        value.as_ref().map(html).unwrap_or_default()
    };
    let pairs =
        part(&input.summary, tables::summary) + &part(&input.environment, tables::environment);
    let pairs = match pairs.as_str() {
        "" => String::new(),
        _ => format!("<div class=\"columns\">\n{pairs}</div>\n"),
    };
    let parts = [
        head(input, &name),
        cards::html(input),
        part(&input.verdict, verdict::html),
        figures::html(&input.rows),
        part(&input.summary, confusion::html),
        pairs,
        part(&input.model, model::html),
        config(input.config.as_deref()),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{name} – Bonfire</title>\n\
         <style>\n{STYLE}{INLINE_CSS}</style>\n</head>\n<body>\n<main>\n{}</main>\n\
         <script>\n{HOVER}</script>\n</body>\n</html>\n",
        parts.concat()
    )
}

fn head(input: &Input, name: &str) -> String {
    let state = State::of(input);
    let (word, explained) = (state.word(), escaped(&state.explained(input)));
    let empty = match input.rows.is_empty() && input.summary.is_none() {
        true => "<p class=\"note\">The run has written no figures yet.</p>\n",
        false => "",
    };
    format!(
        "<header>\n<p class=\"kind\">Bonfire run</p>\n<h1>{name}</h1>\n<p><span class=\"state {word}\">\
         {word}</span> <span class=\"note\">{explained}</span></p>\n{empty}</header>\n"
    )
}

fn config(toml: Option<&str>) -> String {
    let Some(toml) = toml else { return String::new() };
    format!(
        "<details class=\"panel\" open><summary><h2>Configuration</h2></summary>\n\
         <pre>{}</pre></details>\n",
        escaped(toml)
    )
}
