//! Checkpoints: a folder each, complete or absent.
//!
//! A checkpoint is written into a folder aside, every file fsynced, its [`Manifest`] last, and the
//! folder is then renamed into place; a folder without a valid manifest is not a checkpoint. A file
//! `latest` beside the checkpoints names the newest complete one.
//!
//! ```text
//! checkpoints/
//!   latest                  name of the newest checkpoint
//!   step-00000120/
//!     model.safetensors     parameters and buffers by module path
//!     state.safetensors     every other tensor: optimizer, callbacks
//!     state.json            every scalar
//!     manifest.json         what belongs to the checkpoint, with checksums
//! ```

mod error;
mod files;
mod manifest;
mod scalars;
mod tensors;

pub use error::CheckpointError;
pub use manifest::{FileEntry, Manifest};
pub use tensors::{read_safetensors, write_safetensors};

use bonfire_tensor::state::State;
use files::{remove_folder, rename, replace_folder, sync_folder, write_file};
use std::path::{Path, PathBuf};

/// File names of a checkpoint.
const MODEL: &str = "model.safetensors";
const TENSORS: &str = "state.safetensors";
const SCALARS: &str = "state.json";
const LATEST: &str = "latest";
/// Prefix of the entries that belong to the model.
pub(crate) const MODEL_PREFIX: &str = "model";

/// A complete state of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// What it is a checkpoint of.
    pub manifest: Manifest,
    /// Model, optimizer, position and callbacks, each under its prefix.
    pub state: State,
}

impl Checkpoint {
    /// Packs the checkpoint into one message between ranks.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, CheckpointError> {
        let parts = [
            self.manifest.encode()?,
            tensors::encode(&self.state.tensors)?,
            scalars::encode(&self.state.scalars)?,
        ];
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        Ok(bytes)
    }

    /// Unpacks what [`to_bytes`](Self::to_bytes) made.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Result<Self, CheckpointError> {
        let path = Path::new("checkpoint from rank 0");
        let mut part = || -> Result<&[u8], CheckpointError> {
            let cut = bytes.split_at_checked(8).and_then(|(len, rest)| {
                let len = u64::from_le_bytes(len.try_into().ok()?);
                rest.split_at_checked(usize::try_from(len).ok()?)
            });
            let Some((part, rest)) = cut else {
                let reason = "it ends too early".to_string();
                return Err(CheckpointError::Invalid {
                    path: path.into(),
                    kind: "message",
                    reason,
                });
            };
            bytes = rest;
            Ok(part)
        };
        let manifest = Manifest::decode(part()?, path)?;
        let tensors = tensors::decode(part()?, path)?;
        let scalars = scalars::decode(part()?, path)?;
        Ok(Self { manifest, state: State { tensors, scalars } })
    }
}

/// Saves a checkpoint as `folder/step-N`, points `latest` at it, and removes all but the newest
/// `keep_last`.
///
/// Returns its folder. One process at a time may save into a folder.
///
/// # Errors
/// [`CheckpointError::Io`]; the checkpoints that were there before stay as they were.
pub fn save(
    folder: &Path,
    checkpoint: Checkpoint,
    keep_last: usize,
) -> Result<PathBuf, CheckpointError> {
    std::fs::create_dir_all(folder).map_err(CheckpointError::io("creating", folder))?;
    let Checkpoint { mut manifest, mut state } = checkpoint;
    let name = format!("step-{:08}", manifest.step);
    let aside = folder.join(format!(".{name}.partial"));
    remove_folder(&aside)?;
    std::fs::create_dir(&aside).map_err(CheckpointError::io("creating", &aside))?;

    let model = state.take_under(MODEL_PREFIX);
    let mut write = || -> Result<(), CheckpointError> {
        manifest.files = vec![
            write_file(&aside, MODEL, &tensors::encode(&model.tensors)?)?,
            write_file(&aside, TENSORS, &tensors::encode(&state.tensors)?)?,
            write_file(&aside, SCALARS, &scalars::encode(&state.scalars)?)?,
        ];
        write_file(&aside, Manifest::FILE, &manifest.encode()?)?;
        sync_folder(&aside)
    };
    if let Err(error) = write() {
        // A full disk needs the room.
        drop(remove_folder(&aside));
        return Err(error);
    }

    let place = folder.join(&name);
    replace_folder(&aside, &place)?;
    let pointer = folder.join(".latest.partial");
    write_file(folder, ".latest.partial", name.as_bytes())?;
    rename(&pointer, &folder.join(LATEST))?;
    sync_folder(folder)?;
    remove_old(folder, &place, keep_last)?;
    Ok(place)
}

/// Loads a checkpoint, checking every file against the manifest.
///
/// `path` is a checkpoint, a folder of checkpoints or a run folder; of the latter two the newest
/// complete checkpoint is taken.
///
/// # Errors
/// [`CheckpointError`] naming the file at fault.
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let folder = find(path)?;
    let manifest = Manifest::read(&folder)?;
    let file = |name: &str| manifest.read_file(&folder, name);
    let mut state = State {
        tensors: tensors::decode(&file(TENSORS)?, &folder.join(TENSORS))?,
        scalars: scalars::decode(&file(SCALARS)?, &folder.join(SCALARS))?,
    };
    let tensors = tensors::decode(&file(MODEL)?, &folder.join(MODEL))?;
    state.insert_under(MODEL_PREFIX, State { tensors, ..State::default() });
    Ok(Checkpoint { manifest, state })
}

/// Finds the checkpoint that a path given by a user means.
fn find(path: &Path) -> Result<PathBuf, CheckpointError> {
    if path.join(Manifest::FILE).is_file() {
        return Ok(path.to_path_buf());
    }
    let candidates = [path.to_path_buf(), path.join("checkpoints")];
    for folder in &candidates {
        let latest = std::fs::read_to_string(folder.join(LATEST));
        let pointed = latest.ok().map(|name| folder.join(name.trim()));
        // A crash between the checkpoint and the pointer leaves an older pointer, never a dangling
        // one; but files may have been removed by hand.
        if let Some(pointed) = pointed.filter(|pointed| Manifest::read(pointed).is_ok()) {
            return Ok(pointed);
        }
        if let Some(newest) = complete(folder).pop() {
            return Ok(newest);
        }
    }
    Err(CheckpointError::NotFound { path: path.to_path_buf() })
}

/// Complete checkpoints of a folder, oldest first.
fn complete(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| Manifest::read(path).is_ok())
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"))
        })
        .collect();
    found.sort();
    found
}

/// Removes all but the newest `keep_last`, never the one just saved.
fn remove_old(folder: &Path, saved: &Path, keep_last: usize) -> Result<(), CheckpointError> {
    let mut others: Vec<PathBuf> =
        complete(folder).into_iter().filter(|path| path != saved).collect();
    others.sort_by_cached_key(|path| {
        std::fs::metadata(path.join(Manifest::FILE)).and_then(|file| file.modified()).ok()
    });
    let excess = (others.len() + 1).saturating_sub(keep_last.max(1));
    others.iter().take(excess).try_for_each(|path| remove_folder(path))
}

#[cfg(test)]
mod tests;
