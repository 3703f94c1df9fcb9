//! What has come of a file so far, held by one process at a time.

use super::error::{FetchError, io};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `NAME.part` beside a file, locked until it is dropped. An empty one is deleted then.
pub(super) struct Part {
    path: PathBuf,
    /// Holds the lock.
    file: File,
}

impl Part {
    /// Takes over what has come of `target` until now.
    pub(super) fn lock(target: &Path) -> Result<Self, FetchError> {
        let mut path = OsString::from(target);
        path.push(".part");
        let path = PathBuf::from(path);
        loop {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(io("opening", &path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(FetchError::Busy { path }),
                Err(TryLockError::Error(error)) => return Err(io("locking", &path)(error)),
            }
            // Whoever had it may have renamed or deleted it meanwhile; then the lock is of another file.
            let held = file.metadata().map_err(io("reading", &path))?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == held) {
                return Ok(Self { path, file });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The number of bytes that have come.
    pub(super) fn size(&self) -> Result<u64, FetchError> {
        Ok(self.file.metadata().map_err(io("reading", &self.path))?.len())
    }

    /// Forgets what has come.
    pub(super) fn clear(&self) -> Result<(), FetchError> {
        self.file.set_len(0).map_err(io("emptying", &self.path))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let is_there = |there: fs::Metadata| {
            self.file.metadata().is_ok_and(|held| held.ino() == there.ino() && held.len() == 0)
        };
        if fs::metadata(&self.path).is_ok_and(is_there) {
            // It can stay: an empty part is as good as none.
            let _ = fs::remove_file(&self.path);
        }
    }
}
