//! A folder of checkpoints: what is in it, and what goes.

use super::files::{PARTIAL, REMOVED, remove_folder, rename, write_file};
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
/// [`CheckpointError::NotFound`] where there is none; [`CheckpointError::Io`].
pub fn list(path: &Path) -> Result<Vec<Entry>, CheckpointError> {
    let folders = match path.join(Manifest::FILE).is_file() {
        true => vec![path.to_path_buf()],
        false => {
            let mut found = named(&folder_of(path))?;
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
/// left; returns what was removed, or with `dry_run` would have been. Damaged ones count as none.
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
    let newest = newest_first(&folder)?;
    let sound = newest.iter().filter(|path| Manifest::read(path).is_ok());
    let mut stays: Vec<&PathBuf> = sound.take(keep_last.max(1)).collect();
    if stays.is_empty() {
        return Err(CheckpointError::NotFound { path: path.to_path_buf() });
    }
    let best = pointed(&folder, BEST);
    stays.extend(&best);
    let mut gone: Vec<PathBuf> =
        newest.iter().filter(|path| !stays.contains(path)).cloned().collect();
    gone.extend(remains(&folder)?);
    gone.sort();
    if !dry_run {
        gone.iter().try_for_each(|path| remove_folder(path))?;
    }
    Ok(gone)
}

/// Removes what interrupted saves and removals have left.
pub(crate) fn tidy(folder: &Path) -> Result<(), CheckpointError> {
    remains(folder)?.iter().try_for_each(|path| remove_folder(path))
}

/// Bytes of all files of a folder of checkpoints.
pub(crate) fn occupied(folder: &Path) -> u64 {
    let inner = entries(folder).unwrap_or_default().into_iter();
    let files = inner.flat_map(|path| entries(&path).unwrap_or_default());
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Forgets a best checkpoint that a run has not come to yet, since it goes on from an older one.
pub(crate) fn forget_best_after(folder: &Path, step: u64) -> Result<(), CheckpointError> {
    match pointed(folder, BEST) {
        Some(best) if best > folder.join(super::name_of(step)) => remove_pointer(folder, BEST),
        _ => Ok(()),
    }
}

/// The folder of checkpoints at a path, which may be a run folder.
fn folder_of(path: &Path) -> PathBuf {
    let inner = path.join("checkpoints");
    if inner.is_dir() { inner } else { path.to_path_buf() }
}

/// What is in a folder; nothing if there is none.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let read = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(CheckpointError::io("reading", folder))?,
    };
    let entry = |entry: std::io::Result<std::fs::DirEntry>| Ok(entry?.path());
    read.map(entry).collect::<std::io::Result<_>>().map_err(CheckpointError::io("reading", folder))
}

/// Folders with the name of a checkpoint. Each was complete once: one is given this name, and loses it,
/// by a rename.
fn named(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let is_step = |path: &PathBuf| file_name(path).starts_with("step-") && path.is_dir();
    Ok(entries(folder)?.into_iter().filter(is_step).collect())
}

/// Folders of saves and removals that did not come to their end.
fn remains(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let is_left = |path: &PathBuf| {
        let name = file_name(path);
        name.starts_with(".step-") && (name.ends_with(PARTIAL) || name.ends_with(REMOVED))
    };
    Ok(entries(folder)?.into_iter().filter(is_left).collect())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Makes a pointer name a checkpoint, at once.
pub(super) fn point(folder: &Path, pointer: &str, name: &str) -> Result<(), CheckpointError> {
    let partial = format!(".{pointer}{PARTIAL}");
    write_file(folder, &partial, name.as_bytes())?;
    rename(&folder.join(partial), &folder.join(pointer))
}

/// The checkpoint that a pointer names, if it does.
pub(super) fn pointed(folder: &Path, pointer: &str) -> Option<PathBuf> {
    let name = std::fs::read_to_string(folder.join(pointer)).ok()?;
    Some(folder.join(name.trim()))
}

pub(super) fn remove_pointer(folder: &Path, pointer: &str) -> Result<(), CheckpointError> {
    let path = folder.join(pointer);
    std::fs::remove_file(&path).map_err(CheckpointError::io("removing", &path))
}

/// Checkpoints of a folder from the one that was saved last to the first; damaged ones, whose place
/// nobody knows, by their step. After a resume from an older one, what was saved later may have a lower
/// step.
///
/// # Errors
/// [`CheckpointError::Io`] where the folder cannot be read.
pub(super) fn newest_first(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut found = named(folder)?;
    found.sort_by_cached_key(|path| {
        let manifest = Manifest::read(path).ok();
        (manifest.map(|manifest| (manifest.serial, manifest.step)), file_name(path))
    });
    // A damaged one stands before the newest sound one of a lower step, so that it is met and told.
    let (mut sorted, damaged): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|path| Manifest::read(path).is_ok());
    for path in damaged {
        let before = sorted.iter().rposition(|sound| *sound < path);
        sorted.insert(before.map_or(0, |place| place + 1), path);
    }
    sorted.reverse();
    Ok(sorted)
}

/// The place of the next checkpoint among those that were saved.
pub(super) fn next_serial(folder: &Path) -> Result<u64, CheckpointError> {
    let manifests = named(folder)?.into_iter().filter_map(|path| Manifest::read(&path).ok());
    Ok(manifests.map(|manifest| manifest.serial).max().unwrap_or(0) + 1)
}

/// Removes all but the newest `keep_last` and the best, never the one just saved.
pub(super) fn remove_old(
    folder: &Path,
    saved: &Path,
    keep_last: usize,
) -> Result<(), CheckpointError> {
    let best = pointed(folder, BEST);
    let stays = |path: &PathBuf| path == saved || best.as_ref() == Some(path);
    let old = newest_first(folder)?.into_iter().filter(|path| !stays(path));
    old.skip(keep_last.max(1) - 1).try_for_each(|path| remove_folder(&path))
}

/// Removes the oldest checkpoint that is neither the newest nor the best, to make room; returns it.
pub(super) fn remove_oldest(folder: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    let best = pointed(folder, BEST);
    let newest = newest_first(folder)?;
    let old = newest.into_iter().skip(1).rfind(|path| best.as_ref() != Some(path));
    old.map(|path| remove_folder(&path).map(|()| path)).transpose()
}
