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
    /// Its place among those that were saved into its folder, from 1; 0 in format 1. Set when it is
    /// written.
    #[serde(default)]
    pub serial: u64,
    /// Ranks that saved it.
    pub world_size: usize,
    /// Configuration that a continuation must share.
    pub configuration: BTreeMap<String, String>,
    /// Its files.
    #[serde(default)]
    pub files: Vec<FileEntry>,
    /// Checksum of the manifest's own file, computed with zeros in this place. Since format 2; set
    /// when it is written.
    #[serde(default)]
    pub checksum: String,
}

/// What stands in the place of a checksum while it is computed.
const NO_CHECKSUM: &str = "0000000000000000";

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
    /// Version that this program writes; it reads older ones too.
    pub const FORMAT: u32 = 2;

    pub(super) fn encode(&self) -> Result<Vec<u8>, CheckpointError> {
        let blank = Self { checksum: NO_CHECKSUM.to_string(), ..self.clone() };
        let encode = |manifest: &Self| {
            serde_json::to_vec_pretty(manifest).map_err(|error| CheckpointError::Encode {
                what: "the manifest",
                reason: error.to_string(),
            })
        };
        let checksum = format!("{:016x}", xxh3_64(&encode(&blank)?));
        encode(&Self { checksum, ..blank })
    }

    /// Checks the file's bytes against the checksum in it.
    fn verify(&self, bytes: &[u8], path: &Path) -> Result<(), CheckpointError> {
        let text = String::from_utf8_lossy(bytes);
        let entry = |checksum: &str| format!("\"checksum\": \"{checksum}\"");
        let blank = text.replacen(&entry(&self.checksum), &entry(NO_CHECKSUM), 1);
        let got = format!("{:016x}", xxh3_64(blank.as_bytes()));
        match got == self.checksum {
            true => Ok(()),
            false => Err(CheckpointError::Damaged {
                path: path.to_path_buf(),
                what: "its checksum",
                expected: self.checksum.clone(),
                got,
            }),
        }
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
        if !(1..=Self::FORMAT).contains(&manifest.format) {
            return Err(invalid(format!(
                "format {} is not one of 1 to {} that this program reads",
                manifest.format,
                Self::FORMAT
            )));
        }
        if manifest.format > 1 || !manifest.checksum.is_empty() {
            manifest.verify(bytes, &path)?;
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
