//! `bonfire new`: a package with a model of its own.

use crate::CliError;
use crate::args::NewArgs;
use crate::exit::Outcome;
use crate::package_name;
use crate::voice::say;
use std::path::{Path, PathBuf};

/// Files of the package, with the text that they are made of.
const FILES: [(&str, &str); 6] = [
    ("Cargo.toml", include_str!("../templates/new/Cargo.toml.in")),
    ("README.md", include_str!("../templates/new/README.md.in")),
    ("recipe.toml", include_str!("../templates/new/recipe.toml.in")),
    ("src/main.rs", include_str!("../templates/new/main.rs.in")),
    ("src/my_net.rs", include_str!("../templates/new/my_net.rs.in")),
    (".gitignore", "/target\n/runs\n"),
];

/// Writes the package; its dependencies are found in a checkout of Bonfire.
pub(crate) fn new_package(args: &NewArgs) -> Result<Outcome, CliError> {
    let name = name_of(&args.folder)?;
    let workspace = workspace(args.path.as_deref())?;
    check_empty(&args.folder)?;
    let values = Values::new(&name, &workspace);
    for (file, text) in FILES {
        write(&args.folder.join(file), values.fill(text).as_bytes())?;
    }
    // Cargo drops from it what the package does not need.
    let lock = workspace.join("Cargo.lock");
    let versions = std::fs::read(&lock).map_err(failed("reading", &lock))?;
    write(&args.folder.join("Cargo.lock"), &versions)?;
    let folder = args.folder.display();
    say(format_args!(
        "{folder} has a package \"{name}\"; train it there: cargo run --release -- train recipe.toml"
    ));
    Ok(Outcome::Done)
}

/// What stands in the place of `{key}`.
struct Values(Vec<(&'static str, String)>);

impl Values {
    fn new(name: &str, workspace: &Path) -> Self {
        let quoted = |text: String| toml::Value::String(text).to_string();
        let path = |beneath: &str| quoted(workspace.join(beneath).display().to_string());
        Self(vec![
            ("{title}", name.to_string()),
            ("{name}", quoted(name.to_string())),
            ("{workspace}", workspace.display().to_string()),
            ("{bonfire}", path("crates/bonfire")),
            ("{bonfire-cli}", path("crates/bonfire-cli")),
            ("{cubecl-llvm}", path("vendor/cubecl-llvm")),
            ("{digits}", path("data/digits")),
        ])
    }

    fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_string(), |text, (key, value)| text.replace(key, value))
    }
}

/// The name of the folder, if a package may have it.
fn name_of(folder: &Path) -> Result<String, CliError> {
    let absolute = std::path::absolute(folder).map_err(failed("finding", folder))?;
    let name = absolute.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    match package_name::problem(&name) {
        None => Ok(name),
        Some(problem) => Err(CliError::Option {
            option: folder.display().to_string(),
            problem: format!("a package cannot have the name of this folder: {problem}"),
        }),
    }
}

/// The checkout that the package depends on: the one given, or the one this program was built from.
fn workspace(given: Option<&Path>) -> Result<PathBuf, CliError> {
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = given.unwrap_or(&built_from);
    let complete = ["crates/bonfire/Cargo.toml", "crates/bonfire-cli/Cargo.toml", "Cargo.lock"]
        .iter()
        .all(|file| path.join(file).is_file());
    if complete {
        return std::fs::canonicalize(path).map_err(failed("finding", path));
    }
    Err(CliError::Option {
        option: format!("--path {}", path.display()),
        problem:
            "there is no checkout of Bonfire; clone its repository and give its folder to --path"
                .to_string(),
    })
}

fn check_empty(folder: &Path) -> Result<(), CliError> {
    let holds_something = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(failed("reading", folder)(error)),
    };
    if holds_something {
        return Err(CliError::Option {
            option: folder.display().to_string(),
            problem: "the folder is not empty; give a new one".to_string(),
        });
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed("creating", folder))?;
    }
    std::fs::write(path, bytes).map_err(failed("writing", path))
}

fn failed(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> CliError + use<> {
    let path = path.to_path_buf();
    move |source| CliError::Io { action, path: path.clone(), source }
}
