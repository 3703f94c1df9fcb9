//! What the command line tells shells and `man` about itself.

use crate::CliError;
use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::exit::Outcome;
use crate::output::print;
use clap::CommandFactory;

/// The name under which people call the program.
const NAME: &str = "bonfire";

pub(crate) fn completions(args: &CompletionsArgs) -> Result<Outcome, CliError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), NAME, &mut text);
    print(String::from_utf8_lossy(&text))?;
    Ok(Outcome::Done)
}

pub(crate) fn man(args: &ManArgs) -> Result<Outcome, CliError> {
    let Some(folder) = &args.out else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Args::command()).render(&mut page);
        rendered.map_err(|source| failed("rendering", NAME.into(), source))?;
        print(String::from_utf8_lossy(&page))?;
        return Ok(Outcome::Done);
    };
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Args::command(), folder));
    written.map_err(|source| failed("writing man pages into", folder.clone(), source))?;
    Ok(Outcome::Done)
}

fn failed(action: &'static str, path: std::path::PathBuf, source: std::io::Error) -> CliError {
    CliError::Io { action, path, source }
}
