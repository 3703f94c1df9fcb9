//! Standard output: what a command was asked for.

use crate::CliError;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// Prints text to standard output. If its reader is gone, as `head` leaves a program, what is left to say
/// is nobody's loss.
///
/// # Errors
/// Happens when it cannot be written for another reason, such as a full disk.
pub(crate) fn print(text: impl Display) -> Result<(), CliError> {
    offer(text).map(drop)
}

/// Prints a line to standard output, as [`print`] does.
///
/// # Errors
/// Those of [`print`].
pub(crate) fn print_line(line: impl Display) -> Result<(), CliError> {
    print(format_args!("{line}\n"))
}

/// Prints text to standard output, and tells whether somebody still reads.
///
/// # Errors
/// Those of [`print`].
pub(crate) fn offer(text: impl Display) -> Result<bool, CliError> {
    let mut output = std::io::stdout().lock();
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(source) => {
            Err(CliError::Io { action: "writing to", path: "standard output".into(), source })
        }
    }
}
