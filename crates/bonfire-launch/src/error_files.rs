//! The files in which workers leave the error that ended them.

use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::LaunchError;

/// More than this of an error file is not shown.
const MAX_BYTES: u64 = 64 * 1024;

/// A private folder with one error file a rank; removed when dropped.
pub(crate) struct ErrorFiles {
    folder: PathBuf,
}

impl ErrorFiles {
    /// Makes the folder, readable by its owner only.
    pub(crate) fn create(run_id: &str) -> Result<Self, LaunchError> {
        // The run identifier may come from the user, so it is no safe part of a path.
        let tag: String =
            run_id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(64).collect();
        let unique =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
        let name = format!("bonfire-{tag}-{}-{unique:x}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => Ok(Self { folder }),
            Err(source) => Err(LaunchError::ErrorFolder { path: folder, source }),
        }
    }

    /// Returns the path of a rank's file, which exists only once the rank wrote it.
    pub(crate) fn path(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("rank-{rank}.txt"))
    }

    /// Returns when the rank wrote its file, if it did.
    pub(crate) fn written(&self, rank: usize) -> Option<SystemTime> {
        fs::metadata(self.path(rank)).and_then(|file| file.modified()).ok()
    }

    /// Returns what the rank wrote, if it wrote anything.
    pub(crate) fn read(&self, rank: usize) -> Option<String> {
        let text = read_head(&self.path(rank))?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl Drop for ErrorFiles {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::debug!(folder = %self.folder.display(), %error, "error files remain");
        }
    }
}

fn read_head(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
