//! How this process speaks on standard error: in words or in JSON, with its rank where nobody else adds it.

mod kept;
mod lines;

pub(crate) use kept::keep;

use crate::problems::has_color;
use crate::process::rank_of_this_process;
use clap::ValueEnum;
use lines::{Form, Lines};
use serde_json::json;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Form of what is told while a command runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Words for people.
    #[default]
    Text,
    /// A JSON object a line, with `time`, `level`, `rank`, `message` and the figures of progress.
    Json,
}

/// Options of every command.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct VoiceArgs {
    /// Tells nothing but warnings and errors.
    #[arg(long, short, global = true, env = "BONFIRE_QUIET", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) quiet: bool,
    /// Form of what is told on standard error while a command runs.
    #[arg(
        long,
        global = true,
        env = "BONFIRE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub(crate) log_format: LogFormat,
}

static VOICE: OnceLock<VoiceArgs> = OnceLock::new();

/// What was chosen on the command line.
pub(crate) fn voice() -> VoiceArgs {
    VOICE.get().copied().unwrap_or_default()
}

/// The choice, for processes that this one starts.
pub(crate) fn environment() -> Vec<(String, String)> {
    let VoiceArgs { quiet, log_format } = voice();
    let format =
        log_format.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    vec![("BONFIRE_QUIET".to_owned(), quiet.to_string()), ("BONFIRE_LOG_FORMAT".to_owned(), format)]
}

/// Begins to log. BONFIRE_LOG chooses what; by default rank 0 tells what it does, and the others what is
/// wrong.
pub(crate) fn start(args: VoiceArgs) {
    let args = *VOICE.get_or_init(|| args);
    let rank = rank_of_this_process();
    let default = match rank {
        None | Some(0) if !args.quiet => "warn,bonfire=info",
        _ => "warn",
    };
    let filter = |default: &str| {
        EnvFilter::try_from_env("BONFIRE_LOG").unwrap_or_else(|_| EnvFilter::new(default))
    };
    let told = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && has_color())
        .event_format(Lines { form: args.log_format.into(), rank, label: label(rank) })
        .with_filter(filter(default).and(filter_fn(|event| event.target() != kept::TARGET)));
    // What is kept is looked at when something has gone wrong: all ranks keep all of it.
    let words = rank.map_or_else(String::new, |rank| format!("[rank {rank}] "));
    let kept = tracing_subscriber::fmt::layer()
        .with_writer(kept::Log)
        .with_ansi(false)
        .event_format(Lines { form: Form::Timed, rank, label: words })
        .with_filter(filter(&format!("warn,bonfire=info,{}=info", kept::TARGET)));
    // Another subscriber may stand already, in a program that embeds this one.
    drop(tracing_subscriber::registry().with(told).with(kept).try_init());
}

/// Keeps lines in this rank's log that are printed elsewhere.
pub(crate) fn keep_lines(text: impl Display) {
    kept::write("INFO", text);
}

/// Keeps an error in this rank's log, whoever tells it.
pub(crate) fn keep_error(line: impl Display) {
    kept::write("ERROR", line);
}

/// The words before each line of a rank that no launcher of ours labels.
fn label(rank: Option<usize>) -> String {
    let is_labelled = std::env::var_os("BONFIRE_ERROR_FILE").is_some();
    match rank {
        Some(rank) if !is_labelled => format!("[rank {rank}] "),
        _ => String::new(),
    }
}

/// Tells a line, unless only warnings and errors are to be told.
pub(crate) fn say(line: impl Display) {
    kept::write("INFO", &line);
    if !voice().quiet {
        tell("INFO", line);
    }
}

/// Tells what has gone wrong.
pub(crate) fn complain(line: impl Display) {
    tell("ERROR", line);
}

/// A closed standard error is nobody's loss.
fn tell(level: &str, line: impl Display) {
    let rank = rank_of_this_process();
    let mut output = std::io::stderr().lock();
    drop(match voice().log_format {
        LogFormat::Text => writeln!(output, "{}{line}", label(rank)),
        LogFormat::Json => {
            let time = lines::now();
            let line = line.to_string();
            let object = match rank {
                Some(rank) => {
                    json!({ "time": time, "level": level, "rank": rank, "message": line })
                }
                None => json!({ "time": time, "level": level, "message": line }),
            };
            writeln!(output, "{object}")
        }
    });
}
