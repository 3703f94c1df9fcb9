//! The `bonfire` program.

use bonfire_cli::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    bonfire_cli::run(Registry::builtin())
}
