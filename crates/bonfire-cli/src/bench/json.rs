use super::measure::Row;
use crate::CliError;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file that appears at once, when all of it is known, or not at all.
pub(super) struct JsonFile {
    path: PathBuf,
    /// Beside it, while it is written.
    partial: PathBuf,
}

impl JsonFile {
    /// Makes sure that the file can be written, before anything is measured.
    pub(super) fn prepare(path: &Path) -> Result<Self, CliError> {
        let failed = |source| CliError::Io { action: "creating", path: path.into(), source };
        // What a link names is replaced, not the link.
        let path = match fs::canonicalize(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_path_buf(),
            found => found.map_err(failed)?,
        };
        if path.exists() && !path.is_file() {
            return Err(failed(Error::other("it is there and no regular file")));
        }
        let name = path.file_name().ok_or_else(|| failed(Error::other("this is no file name")))?;
        let name = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        let partial = path.with_file_name(name);
        // Not kept: an interrupt in the meantime would leave it behind.
        File::create(&partial).and_then(|_| fs::remove_file(&partial)).map_err(failed)?;
        Ok(Self { path, partial })
    }

    /// Writes a list of rows, and nothing else.
    pub(super) fn write(&self, rows: &[Row]) -> Result<(), CliError> {
        self.try_write(rows).map_err(|source| {
            // The first error is the one to tell.
            drop(fs::remove_file(&self.partial));
            CliError::Io { action: "writing", path: self.path.clone(), source }
        })
    }

    fn try_write(&self, rows: &[Row]) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(rows)?;
        let mut file = File::create(&self.partial)?;
        file.write_all(format!("{text}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&self.partial, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.json");
        fs::write(&path, "old").unwrap();
        let file = JsonFile::prepare(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        file.write(&[]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[]\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
