use super::CheckpointError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// What a checkpoint is and consists of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// Epoch it was saved in, from 0.
    pub epoch: u64,
    /// Optimizer steps taken.
    pub step: u64,
    /// Ranks that saved it.
    pub world_size: usize,
    /// Configuration that a continuation must share.
    pub configuration: BTreeMap<String, String>,
    /// Its files.
    #[serde(default)]
    pub files: Vec<FileEntry>,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Checksum of its content, in hexadecimal.
    pub xxh3: String,
}

impl Manifest {
    /// Name of the file that holds it.
    pub const FILE: &str = "manifest.json";
    /// Version that this program writes and reads.
    pub const FORMAT: u32 = 1;

    pub(super) fn encode(&self) -> Result<Vec<u8>, CheckpointError> {
        serde_json::to_vec_pretty(self).map_err(|error| CheckpointError::Encode {
            what: "the manifest",
            reason: error.to_string(),
        })
    }

    /// Reads the manifest of a checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] for another format or a malformed file.
    pub fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(Self::FILE);
        let bytes = std::fs::read(&path).map_err(CheckpointError::io("reading", &path))?;
        Self::decode(&bytes, &path)
    }

    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<Self, CheckpointError> {
        let path = path.to_path_buf();
        let invalid = |reason: String| CheckpointError::Invalid {
            path: path.clone(),
            kind: "manifest",
            reason,
        };
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
        if manifest.format != Self::FORMAT {
            return Err(invalid(format!(
                "format {} is not the {} that this program reads",
                manifest.format,
                Self::FORMAT
            )));
        }
        Ok(manifest)
    }

    /// Reads a file of the checkpoint and compares it with its entry.
    pub(super) fn read_file(&self, folder: &Path, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let path = folder.join(name);
        let Some(entry) = self.files.iter().find(|entry| entry.name == name) else {
            let reason = format!("it does not list {name}");
            let path = folder.join(Self::FILE);
            return Err(CheckpointError::Invalid { path, kind: "manifest", reason });
        };
        let bytes = std::fs::read(&path).map_err(CheckpointError::io("reading", &path))?;
        let damaged = |what, expected: String, got: String| {
            Err(CheckpointError::Damaged { path: path.clone(), what, expected, got })
        };
        if bytes.len() as u64 != entry.bytes {
            return damaged("its size", entry.bytes.to_string(), bytes.len().to_string());
        }
        let xxh3 = format!("{:016x}", xxh3_64(&bytes));
        if xxh3 != entry.xxh3 {
            return damaged("its checksum", entry.xxh3.clone(), xxh3);
        }
        Ok(bytes)
    }
}
