//! The form of a logged event.

use super::LogFormat;
use serde_json::{Map, Value};
use std::fmt;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Form of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Words for people who look on.
    Words,
    /// Words with time and level.
    Timed,
    Json,
}

impl From<LogFormat> for Form {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Words,
            LogFormat::Json => Self::Json,
        }
    }
}

pub(super) struct Lines {
    pub(super) form: Form,
    pub(super) rank: Option<usize>,
    pub(super) label: String,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let level = *event.metadata().level();
        match self.form {
            Form::Words | Form::Timed => self.text(&mut writer, level, fields.0),
            Form::Json => self.json(&mut writer, level, event.metadata().target(), fields.0),
        }
    }
}

impl Lines {
    fn text(
        &self,
        writer: &mut Writer<'_>,
        level: Level,
        mut fields: Map<String, Value>,
    ) -> fmt::Result {
        let message = fields.remove("message").unwrap_or_default();
        if self.form == Form::Timed {
            write!(writer, "{} {level:<5} ", now())?;
        }
        write!(writer, "{}", self.label)?;
        // What goes well needs no word for that.
        if level != Level::INFO && self.form == Form::Words {
            let word = level.to_string().to_lowercase();
            match (writer.has_ansi_escapes(), level) {
                (true, Level::ERROR) => write!(writer, "\x1b[31m{word}\x1b[0m: ")?,
                (true, Level::WARN) => write!(writer, "\x1b[33m{word}\x1b[0m: ")?,
                _ => write!(writer, "{word}: ")?,
            }
        }
        write!(writer, "{}", plain(&message))?;
        for (name, value) in &fields {
            write!(writer, " {name}={}", plain(value))?;
        }
        writeln!(writer)
    }

    fn json(
        &self,
        writer: &mut Writer<'_>,
        level: Level,
        target: &str,
        fields: Map<String, Value>,
    ) -> fmt::Result {
        let mut object = Map::new();
        object.insert("time".into(), now().into());
        object.insert("level".into(), level.to_string().into());
        if let Some(rank) = self.rank {
            object.insert("rank".into(), rank.into());
        }
        object.insert("target".into(), target.into());
        object.extend(fields);
        writeln!(writer, "{}", Value::Object(object))
    }
}

/// A string without its quotation marks.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The fields of an event, by name.
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinities.
        let value = serde_json::Number::from_f64(value)
            .map_or_else(|| Value::from(value.to_string()), Value::Number);
        self.0.insert(field.name().into(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }
}

/// The time in UTC, as RFC 3339 writes it.
pub(super) fn now() -> String {
    let now = time::OffsetDateTime::from(SystemTime::now());
    let (hour, minute, second, milli) = now.to_hms_milli();
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}
