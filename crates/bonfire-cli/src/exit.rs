use crate::CliError;
use crate::process::rank_of_this_process;
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
    let rank = rank_of_this_process();
    if let Some(path) = std::env::var_os("BONFIRE_ERROR_FILE")
        && let Err(reason) = std::fs::write(&path, error.to_string())
    {
        eprintln!("writing the error file {} failed: {reason}", path.display());
    }
    // What all ranks find by themselves is said once.
    if rank.is_none_or(|rank| rank == 0) || !error.is_known_to_all() {
        eprintln!("error: {error}");
    }
}
