//! Checkpoints: a folder each, complete or absent.
//!
//! A checkpoint is written into a folder aside, every file fsynced, its [`Manifest`] last, and the
//! folder is then renamed into place; a folder without a valid manifest is not a checkpoint. A file
//! `latest` beside the checkpoints names the newest complete one.
//!
//! ```text
//! checkpoints/
//!   latest                  name of the newest checkpoint
//!   best                    name of the best one, if the best is kept
//!   step-00000120/
//!     model.safetensors     parameters and buffers by module path
//!     state.safetensors     every other tensor: optimizer, callbacks
//!     state.json            every scalar
//!     manifest.json         what belongs to the checkpoint, with checksums
//! ```

pub(crate) mod continuation;
mod error;
mod files;
mod folder;
mod manifest;
mod migration;
mod scalars;
mod tensors;
mod weights;
mod writer;

pub use continuation::Difference;
pub use error::CheckpointError;
pub use folder::{Entry, list, prune};
pub(crate) use folder::{forget_best_after, occupied, tidy};
pub use manifest::{FileEntry, Manifest};
pub use tensors::{read_safetensors, write_safetensors};
pub use weights::mean_of_models;
pub(crate) use writer::{Job, Writer};

use bonfire_tensor::state::State;
use files::{PARTIAL, remove_folder, replace_folder, sync_folder, write_file};
use folder::{
    BEST, LATEST, newest_first, next_serial, point, pointed, remove_old, remove_oldest,
    remove_pointer,
};
use std::path::{Path, PathBuf};

/// File names of a checkpoint.
const MODEL: &str = "model.safetensors";
const TENSORS: &str = "state.safetensors";
const SCALARS: &str = "state.json";
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

/// Which checkpoints of a folder stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Newest ones that stay; 1 at least.
    pub last: usize,
    /// Whether the one at hand is the best, which stays until there is a better one.
    pub best: bool,
}

impl Keep {
    /// Keeps the newest ones.
    pub fn last(last: usize) -> Self {
        Self { last, best: false }
    }
}

/// Saves a checkpoint as `folder/step-N`, points `latest` at it, and `best` if it is that, and removes
/// those that need not stay. On a full disk, older ones make room for it.
///
/// Returns its folder. One process at a time may save into a folder.
///
/// # Errors
/// [`CheckpointError::Io`]; [`CheckpointError::NotANumber`]. The newest checkpoint that was there before, and the
/// best, stay as they were.
pub fn save(folder: &Path, checkpoint: Checkpoint, keep: Keep) -> Result<PathBuf, CheckpointError> {
    std::fs::create_dir_all(folder).map_err(CheckpointError::io("creating", folder))?;
    let Checkpoint { mut manifest, mut state } = checkpoint;
    let name = name_of(manifest.step);
    manifest.serial = next_serial(folder)?;
    let model = state.take_under(MODEL_PREFIX);
    weights::expect_numbers(&model, manifest.step)?;
    let parts = [
        (MODEL, tensors::encode(&model.tensors)?),
        (TENSORS, tensors::encode(&state.tensors)?),
        (SCALARS, scalars::encode(&state.scalars)?),
    ];
    let aside = folder.join(format!(".{name}{PARTIAL}"));
    while let Err(error) = write(&aside, &mut manifest, &parts) {
        // A full disk needs the room.
        drop(remove_folder(&aside));
        match error.is_full_disk().then(|| remove_oldest(folder)).transpose()?.flatten() {
            Some(old) => tracing::warn!("{error}; \"{}\" makes room", old.display()),
            None => return Err(error),
        }
    }
    let place = folder.join(&name);
    if !keep.best && pointed(folder, BEST).as_ref() == Some(&place) {
        // Another state takes the place of the best.
        remove_pointer(folder, BEST)?;
    }
    replace_folder(&aside, &place)?;
    // It is saved, whatever becomes of the others.
    if let Err(error) = tidy_up(folder, &place, &name, keep) {
        tracing::warn!("\"{}\" is saved, but {error}", place.display());
    }
    Ok(place)
}

/// Writes the files of a checkpoint into a folder aside, the manifest last.
fn write(
    aside: &Path,
    manifest: &mut Manifest,
    parts: &[(&str, Vec<u8>)],
) -> Result<(), CheckpointError> {
    remove_folder(aside)?;
    std::fs::create_dir(aside).map_err(CheckpointError::io("creating", aside))?;
    manifest.files.clear();
    for (name, bytes) in parts {
        manifest.files.push(write_file(aside, name, bytes)?);
    }
    write_file(aside, Manifest::FILE, &manifest.encode()?)?;
    sync_folder(aside)
}

/// Points at a checkpoint that was just saved, and removes old ones.
fn tidy_up(folder: &Path, place: &Path, name: &str, keep: Keep) -> Result<(), CheckpointError> {
    point(folder, LATEST, name)?;
    if keep.best {
        point(folder, BEST, name)?;
    }
    sync_folder(folder)?;
    remove_old(folder, place, keep.last)
}

/// The name of a checkpoint's folder.
fn name_of(step: u64) -> String {
    format!("step-{step:08}")
}

/// Loads a checkpoint, checking every file against the manifest.
///
/// `path` is a checkpoint, a folder of checkpoints or a run folder; of the latter two the newest sound
/// checkpoint is taken, with a warning about those that are damaged. [`list`] names all that there are.
///
/// # Errors
/// [`CheckpointError`] naming the file at fault.
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    if path.join(Manifest::FILE).is_file() {
        return load_exactly(path);
    }
    for folder in [path.to_path_buf(), path.join("checkpoints")] {
        if let Some(checkpoint) = load_newest(&folder)? {
            return Ok(checkpoint);
        }
    }
    Err(CheckpointError::NotFound { path: path.to_path_buf() })
}

/// Loads the newest sound checkpoint of a folder of checkpoints, with a warning about those that are
/// damaged; `None` if there is none at all.
///
/// # Errors
/// That of the newest, if all are damaged.
pub fn load_newest(folder: &Path) -> Result<Option<Checkpoint>, CheckpointError> {
    let mut failure = None;
    let mut candidates = newest_first(folder)?.into_iter().peekable();
    while let Some(candidate) = candidates.next() {
        match load_exactly(&candidate) {
            Ok(checkpoint) => return Ok(Some(checkpoint)),
            Err(error) => {
                if candidates.peek().is_some() {
                    tracing::warn!("{error}; trying the checkpoint before it");
                }
                failure.get_or_insert(error);
            }
        }
    }
    failure.map_or(Ok(None), Err)
}

fn load_exactly(folder: &Path) -> Result<Checkpoint, CheckpointError> {
    let manifest = Manifest::read(folder)?;
    let file = |name: &str| manifest.read_file(folder, name);
    let mut state = State {
        tensors: tensors::decode(&file(TENSORS)?, &folder.join(TENSORS))?,
        scalars: scalars::decode(&file(SCALARS)?, &folder.join(SCALARS))?,
    };
    let tensors = tensors::decode(&file(MODEL)?, &folder.join(MODEL))?;
    state.insert_under(MODEL_PREFIX, State { tensors, ..State::default() });
    migration::migrate(Checkpoint { manifest, state })
}

#[cfg(test)]
mod tests;
