//! Cargo, run in the workspace.

use crate::Result;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Root of the workspace.
pub(crate) fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// A program that starts in the root of the workspace.
pub(crate) fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.current_dir(root());
    command
}

/// Runs a command to its end; says which one failed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{}: {error}", words(command)))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{}: {status}", words(command)).into())
}

/// Runs a command to its end and returns what it printed; errors of its own go to the terminal.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", words(command)))?;
    if !output.status.success() {
        return Err(format!("{}: {}", words(command), output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Cargo itself, the one that runs this program.
pub(crate) fn cargo() -> Command {
    command(std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from))
}

/// Programs in the release profile.
pub(crate) struct Programs {
    /// `bonfire`.
    pub(crate) bonfire: PathBuf,
    /// The timed training loops.
    pub(crate) train_loop: PathBuf,
    /// Where they and the others of `benches` lie.
    pub(crate) folder: PathBuf,
}

/// Builds the programs of chores, all at once, so that they share one build of what they need.
pub(crate) fn build_release() -> Result<Programs> {
    run(cargo()
        .args(["build", "--release", "--package", "bonfire-cli"])
        .args(["--package", "bonfire-benches"]))?;
    let folder = release_folder()?;
    Ok(Programs { bonfire: folder.join("bonfire"), train_loop: folder.join("train_loop"), folder })
}

/// Builds an example of a package in the release profile, and nothing that it does not need.
pub(crate) fn build_example(package: &str, example: &str) -> Result<PathBuf> {
    run(cargo().args(["build", "--release", "--package", package, "--example", example]))?;
    Ok(release_folder()?.join("examples").join(example))
}

/// Where programs in the release profile lie.
pub(crate) fn release_folder() -> Result<PathBuf> {
    let metadata = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let target =
        metadata["target_directory"].as_str().ok_or("cargo metadata has no target folder")?;
    Ok(Path::new(target).join("release"))
}

fn words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let all = std::iter::once(program).chain(command.get_args());
    all.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
