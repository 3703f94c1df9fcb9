use crate::CliError;
use crate::problems::{self, Look};
use crate::process::rank_of_this_process;
use crate::voice::{complain, keep_error};
use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As it should.
    Done,
    /// Stopped by a signal, with a checkpoint.
    Stopped {
        /// The signal.
        signal: i32,
    },
    /// Processes that it started ended with this code; the cause was told.
    Workers(i32),
}

/// Prints an error and turns the result into the exit code of the process.
pub(crate) fn code(result: Result<Outcome, CliError>) -> ExitCode {
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Stopped { signal }) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        Ok(Outcome::Workers(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            tell(&error);
            ExitCode::FAILURE
        }
    }
}

fn tell(error: &CliError) {
    keep_error(format_args!("error: {error}"));
    let error_file = std::env::var_os("BONFIRE_ERROR_FILE");
    if let Some(path) = &error_file
        && let Err(reason) = std::fs::write(path, error.to_string())
    {
        complain(format_args!("writing the error file {} failed: {reason}", path.display()));
    }
    // Of ranks with one launcher, rank 0 says what all know; ranks started by hand may differ.
    let said_by_rank_0 =
        error_file.is_some() && rank_of_this_process().is_some_and(|rank| rank > 0);
    if !said_by_rank_0 || !error.is_known_to_all() {
        match error {
            CliError::Config(problems) => {
                complain(format_args!("error: {}", problems::show(problems, Look::of_stderr())));
            }
            error => complain(format_args!("error: {error}")),
        }
    }
}
