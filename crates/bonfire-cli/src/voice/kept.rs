//! What a rank says, kept in its run's folder, with the time of every line.

use super::lines::now;
use crate::process::rank_of_this_process;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing_subscriber::fmt::MakeWriter;

/// Target of events that are kept and not told: whoever looks on has seen them in another form.
pub(super) const TARGET: &str = bonfire_trainer::KEPT;

/// Most bytes that wait for a file; what goes beyond is not kept.
const MOST: usize = 1 << 16;

/// Where lines go.
enum Place {
    /// The run has no folder yet, if it ever has one.
    Waiting(Vec<u8>),
    File(std::fs::File),
}

static PLACE: Mutex<Place> = Mutex::new(Place::Waiting(Vec::new()));

fn place() -> MutexGuard<'static, Place> {
    PLACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what this process has said and says from now on, behind what a run before has left:
/// `logs/rank<rank>.log`, and of ranks that are threads of one process `logs/ranks.log`.
pub(crate) fn keep(run_folder: &Path, rank: usize, world_size: usize) {
    let mut place = place();
    let Place::Waiting(waiting) = &*place else { return };
    let folder = run_folder.join("logs");
    let are_threads = rank_of_this_process().is_none() && world_size > 1;
    let name = if are_threads { "ranks.log".to_owned() } else { format!("rank{rank}.log") };
    let path = folder.join(name);
    let opened = std::fs::create_dir_all(&folder)
        .and_then(|()| OpenOptions::new().create(true).append(true).open(&path))
        .and_then(|mut file| file.write_all(waiting).map(|()| file));
    match opened {
        Ok(file) => *place = Place::File(file),
        Err(error) => {
            // Logging comes here too.
            drop(place);
            tracing::warn!("\"{}\" cannot be written ({error}): no log is kept", path.display());
        }
    }
}

/// Adds lines to the log.
pub(super) fn write(level: &str, text: impl Display) {
    let rank = rank_of_this_process().map_or_else(String::new, |rank| format!("[rank {rank}] "));
    let time = now();
    let lines = text.to_string();
    let lines = lines.lines().map(|line| format!("{time} {level:<5} {rank}{line}\n"));
    // A run does not end for want of its log.
    drop(Writer.write_all(lines.collect::<String>().as_bytes()));
}

/// Makes writers to the log.
pub(super) struct Log;

impl<'a> MakeWriter<'a> for Log {
    type Writer = Writer;

    fn make_writer(&'a self) -> Writer {
        Writer
    }
}

pub(super) struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *place() {
            Place::File(file) => file.write(bytes),
            Place::Waiting(waiting) => {
                if waiting.len() + bytes.len() <= MOST {
                    waiting.extend_from_slice(bytes);
                }
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
