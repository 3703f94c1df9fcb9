//! What is wrong with a recipe, shown where it was written.

use bonfire_trainer::config::{ConfigError, Excerpt, Problem};
use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report,
};
use std::io::IsTerminal;

/// Wider than any line: outside a terminal nothing is broken, so that messages can be searched for.
const UNBROKEN: usize = 100_000;

/// How text is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    is_terminal: bool,
    has_color: bool,
}

impl Look {
    /// That of standard error: colours and frames on a terminal, unless NO_COLOR is set.
    pub(crate) fn of_stderr() -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_terminal, has_color: is_terminal && has_color() }
    }

    fn handler(self) -> GraphicalReportHandler {
        let theme = match self {
            Self { has_color: true, .. } => GraphicalTheme::unicode(),
            Self { is_terminal: true, .. } => GraphicalTheme::unicode_nocolor(),
            _ => GraphicalTheme::none(),
        };
        let width = match self.is_terminal {
            true => usize::from(console::Term::stderr().size().1),
            false => UNBROKEN,
        };
        GraphicalReportHandler::new_themed(theme).with_width(width).without_cause_chain()
    }
}

/// Whether a terminal may be given colours: <https://no-color.org>.
pub(crate) fn has_color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Shows every problem, with the lines around it.
pub(crate) fn show(error: &ConfigError, look: Look) -> String {
    let count = match error.problems.len() {
        1 => "a problem".to_owned(),
        many => format!("{many} problems"),
    };
    let mut text = format!("the configuration has {count}\n");
    for problem in &error.problems {
        text.push('\n');
        let mut shown = String::new();
        match look.handler().render_report(&mut shown, report(problem).as_ref()) {
            Ok(()) => text.push_str(&shown),
            // It has no reason to fail; the message is what counts.
            Err(_) => text.push_str(&format!("{problem}\n")),
        }
    }
    text.trim_end().to_owned()
}

fn report(problem: &Problem) -> Report {
    match &problem.excerpt {
        None => Report::new(MietteDiagnostic::new(problem.to_string())),
        Some(Excerpt { text, range }) => {
            let label = LabeledSpan::new(None, range.start, first_line(text, range.clone()));
            let diagnostic = MietteDiagnostic::new(&problem.message).with_label(label);
            let name = match problem.line {
                Some(_) => problem.origin.as_str(),
                // Of `--set key=value` the text itself is shown.
                None => "--set",
            };
            Report::new(diagnostic).with_source_code(NamedSource::new(name, text.to_string()))
        }
    }
}

/// Length of the part of a range that is in its first line: a section is marked at its beginning.
fn first_line(text: &str, range: std::ops::Range<usize>) -> usize {
    let marked = text.get(range).unwrap_or_default();
    marked.find('\n').unwrap_or(marked.len()).max(1)
}
