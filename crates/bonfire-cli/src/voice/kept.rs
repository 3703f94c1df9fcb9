//! What a rank says, kept in its run's folder: `logs/rankN.log`, with the time of every line.

use super::lines::now;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use tracing_subscriber::fmt::MakeWriter;

static FILE: OnceLock<File> = OnceLock::new();

/// Keeps what this process says from now on, behind what a run before has left. Ranks that are threads share
/// the file of the first.
pub(crate) fn keep(run_folder: &Path, rank: usize) {
    let folder = run_folder.join("logs");
    let path = folder.join(format!("rank{rank}.log"));
    let opened = std::fs::create_dir_all(&folder)
        .and_then(|()| OpenOptions::new().create(true).append(true).open(&path));
    match opened {
        Ok(file) => drop(FILE.set(file)),
        Err(error) => {
            tracing::warn!("\"{}\" cannot be written ({error}): no log is kept", path.display());
        }
    }
}

/// Adds a line to the log, if one is kept.
pub(super) fn write(level: &str, rank: Option<usize>, line: impl Display) {
    if let Some(mut file) = FILE.get() {
        let rank = rank.map_or_else(String::new, |rank| format!("[rank {rank}] "));
        // A run does not end for want of its log.
        drop(writeln!(file, "{} {level:<5} {rank}{line}", now()));
    }
}

/// Writes to the log, or nowhere while there is none.
pub(super) struct Log;

impl<'a> MakeWriter<'a> for Log {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        LogWriter
    }
}

pub(super) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match FILE.get() {
            Some(mut file) => file.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
