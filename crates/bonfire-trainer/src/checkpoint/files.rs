//! Files that are on the disk when a call returns.

use super::CheckpointError;
use super::manifest::FileEntry;
use nix::fcntl::{AT_FDCWD, RenameFlags};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// End of the name of a checkpoint that is being written.
pub(super) const PARTIAL: &str = ".partial";
/// End of the name of a checkpoint that is being removed.
pub(super) const REMOVED: &str = ".removed";

pub(super) fn write_file(
    folder: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<FileEntry, CheckpointError> {
    let path = folder.join(name);
    let mut file = File::create(&path).map_err(CheckpointError::io("creating", &path))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(CheckpointError::io("writing", &path))?;
    let xxh3 = format!("{:016x}", xxh3_64(bytes));
    Ok(FileEntry { name: name.to_string(), bytes: bytes.len() as u64, xxh3 })
}

pub(super) fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(CheckpointError::io("syncing", folder))
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    std::fs::rename(from, to).map_err(CheckpointError::io("renaming to", to))
}

/// Puts a folder in the place of another, at once where the file system can exchange them.
pub(super) fn replace_folder(new: &Path, place: &Path) -> Result<(), CheckpointError> {
    if !place.exists() {
        return rename(new, place);
    }
    if nix::fcntl::renameat2(AT_FDCWD, new, AT_FDCWD, place, RenameFlags::RENAME_EXCHANGE).is_ok() {
        return remove_folder(new);
    }
    remove_folder(place)?;
    rename(new, place)
}

/// Removes a folder that may not be there. It loses its name first, so that a half-removed checkpoint
/// is none.
pub(super) fn remove_folder(folder: &Path) -> Result<(), CheckpointError> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let hidden = match name.starts_with('.') {
        true => folder.to_path_buf(),
        false => folder.with_file_name(format!(".{name}{REMOVED}")),
    };
    let absent_is_fine = |result: std::io::Result<()>| match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    if hidden != folder {
        absent_is_fine(std::fs::remove_dir_all(&hidden))
            .and_then(|()| absent_is_fine(std::fs::rename(folder, &hidden)))
            .map_err(CheckpointError::io("removing", folder))?;
    }
    absent_is_fine(std::fs::remove_dir_all(&hidden))
        .map_err(CheckpointError::io("removing", folder))
}
