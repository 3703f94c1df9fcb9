//! A folder of checkpoints: what is in it, and what goes.

use super::files::{remove_folder, rename, write_file};
use super::{CheckpointError, Manifest};
use std::path::{Path, PathBuf};

/// Pointer to the newest checkpoint.
pub(super) const LATEST: &str = "latest";
/// Pointer to the best one.
pub(super) const BEST: &str = "best";

/// A checkpoint in a folder, sound or not.
#[derive(Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Its folder.
    pub path: PathBuf,
    /// What it says of itself, or what is wrong with that.
    pub manifest: Result<Manifest, CheckpointError>,
    /// Whether `latest` names it.
    pub latest: bool,
    /// Whether `best` names it.
    pub best: bool,
}

/// Lists the checkpoints at a path, oldest step first: a checkpoint, a folder of checkpoints or a run
/// folder.
///
/// # Errors
/// [`CheckpointError::NotFound`] where there is none.
pub fn list(path: &Path) -> Result<Vec<Entry>, CheckpointError> {
    let folders = match path.join(Manifest::FILE).is_file() {
        true => vec![path.to_path_buf()],
        false => {
            let mut found = complete(&folder_of(path));
            found.sort();
            found
        }
    };
    if folders.is_empty() {
        return Err(CheckpointError::NotFound { path: path.to_path_buf() });
    }
    let entry = |path: PathBuf| {
        let points = |pointer: &str| {
            path.parent().and_then(|folder| pointed(folder, pointer)).as_ref() == Some(&path)
        };
        let (latest, best) = (points(LATEST), points(BEST));
        Entry { manifest: Manifest::read(&path), latest, best, path }
    };
    Ok(folders.into_iter().map(entry).collect())
}

/// Removes all but the newest `keep_last` checkpoints and the best one, and what interrupted saves have
/// left; returns what was removed, or with `dry_run` would have been.
///
/// `path` is a folder of checkpoints or a run folder, of a run that has ended.
///
/// # Errors
/// [`CheckpointError::NotFound`]; [`CheckpointError::Io`].
pub fn prune(
    path: &Path,
    keep_last: usize,
    dry_run: bool,
) -> Result<Vec<PathBuf>, CheckpointError> {
    let folder = folder_of(path);
    let newest = newest_first(&folder);
    if newest.is_empty() {
        return Err(CheckpointError::NotFound { path: path.to_path_buf() });
    }
    let best = pointed(&folder, BEST);
    let mut stays: Vec<PathBuf> = newest.into_iter().take(keep_last.max(1)).collect();
    stays.extend(best);
    let mut gone: Vec<PathBuf> =
        entries(&folder).filter(|path| is_of_a_checkpoint(path) && !stays.contains(path)).collect();
    gone.sort();
    if !dry_run {
        gone.iter().try_for_each(|path| remove_folder(path))?;
    }
    Ok(gone)
}

/// The folder of checkpoints at a path, which may be a run folder.
fn folder_of(path: &Path) -> PathBuf {
    let inner = path.join("checkpoints");
    if inner.is_dir() { inner } else { path.to_path_buf() }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Whether a path is a checkpoint, or the folder aside in which one was being written.
fn is_of_a_checkpoint(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let aside = name.starts_with(".step-") && name.ends_with(".partial");
    path.is_dir() && (aside || name.starts_with("step-"))
}

/// Makes a pointer name a checkpoint, at once.
pub(super) fn point(folder: &Path, pointer: &str, name: &str) -> Result<(), CheckpointError> {
    let partial = format!(".{pointer}.partial");
    write_file(folder, &partial, name.as_bytes())?;
    rename(&folder.join(partial), &folder.join(pointer))
}

/// The checkpoint that a pointer names, if it does.
fn pointed(folder: &Path, pointer: &str) -> Option<PathBuf> {
    let name = std::fs::read_to_string(folder.join(pointer)).ok()?;
    Some(folder.join(name.trim()))
}

/// Checkpoints of a folder, sound or damaged: the one that `latest` names, then the others from new to old. After a
/// resume from an older one, what is newer by its step is older by its time.
pub(super) fn newest_first(folder: &Path) -> Vec<PathBuf> {
    let mut found = complete(folder);
    found.sort_by_cached_key(|path| {
        std::fs::metadata(path.join(Manifest::FILE)).and_then(|file| file.modified()).ok()
    });
    // A crash between the checkpoint and the pointer leaves an older pointer, never a dangling one;
    // but files may have been removed by hand.
    if let Some(latest) = pointed(folder, LATEST)
        && let Some(place) = found.iter().position(|path| *path == latest)
    {
        let latest = found.remove(place);
        found.push(latest);
    }
    found.reverse();
    found
}

/// Folders of checkpoints that were written to the end; what is in them may be
/// damaged all the same.
pub(super) fn complete(folder: &Path) -> Vec<PathBuf> {
    let is_step = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"))
    };
    let has_manifest = |path: &PathBuf| path.join(Manifest::FILE).is_file();
    entries(folder).filter(|path| is_step(path) && has_manifest(path)).collect()
}

/// Removes all but the newest `keep_last` and the best, never the one just saved.
pub(super) fn remove_old(
    folder: &Path,
    saved: &Path,
    keep_last: usize,
) -> Result<(), CheckpointError> {
    let best = pointed(folder, BEST);
    let stays = |path: &PathBuf| path == saved || best.as_ref() == Some(path);
    let old = newest_first(folder).into_iter().filter(|path| !stays(path));
    old.skip(keep_last.max(1) - 1).try_for_each(|path| remove_folder(&path))
}
