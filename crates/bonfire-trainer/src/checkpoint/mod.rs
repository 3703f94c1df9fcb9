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
pub use manifest::{FileEntry, Manifest};
pub use tensors::{read_safetensors, write_safetensors};
pub use weights::mean_of_models;
pub(crate) use writer::{Job, Writer};

use bonfire_tensor::state::State;
use files::{remove_folder, replace_folder, sync_folder, write_file};
use folder::{BEST, LATEST, newest_first, point, remove_old};
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
/// those that need not stay.
///
/// Returns its folder. One process at a time may save into a folder.
///
/// # Errors
/// [`CheckpointError::Io`]; the checkpoints that were there before stay as they were.
pub fn save(folder: &Path, checkpoint: Checkpoint, keep: Keep) -> Result<PathBuf, CheckpointError> {
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
    point(folder, LATEST, &name)?;
    if keep.best {
        point(folder, BEST, &name)?;
    }
    sync_folder(folder)?;
    remove_old(folder, &place, keep.last)?;
    Ok(place)
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
    let mut candidates = newest_first(folder).into_iter().peekable();
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
