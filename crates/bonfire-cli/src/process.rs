//! What this process knows about itself.

use bonfire_comm::RankEnv;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names when the program that the user started began, in nanoseconds since 1970.
const LAUNCH_TIME: &str = "BONFIRE_LAUNCH_TIME_NS";

/// Names the command line of the program that the user started.
pub(crate) const COMMAND: &str = "BONFIRE_COMMAND";

/// The command line of the program that the user started: the launcher's in a worker, else this process'
/// own.
pub(crate) fn command_line() -> String {
    std::env::var(COMMAND).unwrap_or_else(|_| {
        let words = std::env::args_os().map(|word| quoted(&word.to_string_lossy()));
        words.collect::<Vec<_>>().join(" ")
    })
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_=./:,+@%".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The rank that the environment gives this process, if any.
pub(crate) fn rank_of_this_process() -> Option<usize> {
    RankEnv::detect().ok().flatten().map(|env| env.rank)
}

static START: OnceLock<SystemTime> = OnceLock::new();

/// Notes that the program begins now. The kernel's own time would be that of a program which this
/// one replaced, such as `cargo run`.
pub(crate) fn note_start() {
    START.get_or_init(SystemTime::now);
}

/// When the program that the user started began: the launcher's start in a worker, else this
/// process' own.
pub(crate) fn launch_time() -> SystemTime {
    let given = std::env::var(LAUNCH_TIME).ok().and_then(|value| value.parse::<u64>().ok());
    match given {
        Some(nanos) => UNIX_EPOCH + Duration::from_nanos(nanos),
        None => *START.get_or_init(SystemTime::now),
    }
}
