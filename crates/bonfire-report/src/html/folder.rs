//! The files of a run's folder.

use super::{FILE_NAME, Input, Standing};
use crate::history;
use serde_json::Value;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

pub(super) fn read(folder: &Path) -> io::Result<Input> {
    Ok(Input {
        name: name(folder),
        standing: Standing::AsItsFilesTell,
        rows: present(history::read(&folder.join("metrics.jsonl")))?.unwrap_or_default(),
        config: present(fs::read_to_string(folder.join("config.toml")))?,
        summary: json(&folder.join("summary.json"))?,
        environment: json(&folder.join("environment.json"))?,
        model: json(&folder.join("model_summary.json"))?,
        verdict: json(&folder.join("profile").join("verdict.json"))?,
    })
}

/// Writes the report aside and renames it.
pub(super) fn write(folder: &Path, html: &str) -> io::Result<PathBuf> {
    let (path, aside) = (folder.join(FILE_NAME), folder.join(format!(".{FILE_NAME}.partial")));
    let mut file = fs::File::create(&aside)?;
    let written = file.write_all(html.as_bytes()).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // A full disk needs the room.
        drop(fs::remove_file(&aside));
        return Err(error);
    }
    fs::rename(&aside, &path)?;
    Ok(path)
}

/// The folder's own name, also where it is called `.`.
fn name(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    whole.file_name().map_or_else(|| "run".to_string(), |name| name.to_string_lossy().into_owned())
}

fn json(path: &Path) -> io::Result<Option<Value>> {
    let Some(bytes) = present(fs::read(path))? else { return Ok(None) };
    let invalid = |error: serde_json::Error| {
        io::Error::new(ErrorKind::InvalidData, format!("{} is not JSON: {error}", path.display()))
    };
    serde_json::from_slice(&bytes).map(Some).map_err(invalid)
}

/// What was read, or none if there is no such file.
fn present<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_may_be_missing_and_broken_ones_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let input = read(folder.path()).unwrap();
        let name = folder.path().file_name().unwrap().to_string_lossy();
        assert_eq!(input, Input { name: name.to_string(), ..Input::default() });
        fs::write(folder.path().join("environment.json"), "{").unwrap();
        let error = read(folder.path()).unwrap_err();
        assert!(error.to_string().contains("environment.json is not JSON"), "{error}");
    }
}
