//! The secret that the ranks of a run share.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::{CommError, RankEnv, Result};

/// Bytes of a token that we make.
const TOKEN_BYTES: usize = 16;
/// Longest token that is read from a file.
const MAX_TOKEN_BYTES: u64 = 256;

/// Where the token of a run comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenSource {
    /// The environment.
    Given(String),
    /// A file that only this user can read, made by whoever hosts the store.
    File(PathBuf),
    /// Nowhere: the network is trusted.
    Open,
}

impl TokenSource {
    /// Decides for the ranks of `env`; a launcher that was told so lets its ranks meet without a token.
    pub(crate) fn of(env: &RankEnv, store_port: u16, insecure: bool) -> Result<Self> {
        let insecure = insecure || std::env::var_os("BONFIRE_INSECURE").is_some_and(|on| on == "1");
        if let Some(token) = &env.token {
            return Ok(Self::Given(token.clone()));
        }
        let one_machine = env.is_loopback() || env.local_world_size == env.world_size;
        if one_machine && !insecure {
            let directory = std::env::var_os("XDG_RUNTIME_DIR")
                .map(PathBuf::from)
                .filter(|path| path.is_dir())
                .unwrap_or_else(|| PathBuf::from("/tmp"));
            return Ok(Self::File(file_path(&directory, store_port, &env.run_id)?));
        }
        if insecure { Ok(Self::Open) } else { Err(CommError::NoToken) }
    }
}

fn file_path(directory: &Path, port: u16, run_id: &str) -> Result<PathBuf> {
    let run = xxh3_64(run_id.as_bytes());
    let user = own_user(directory)?;
    Ok(directory.join(format!("bonfire-{user}-{port}-{run:016x}.token")))
}

fn own_user(path: &Path) -> Result<u32> {
    // The owner of our own process directory: std has no getuid.
    let metadata = fs::metadata("/proc/self").map_err(|error| failed(path, &error))?;
    Ok(metadata.uid())
}

fn failed(path: &Path, error: &io::Error) -> CommError {
    CommError::TokenFile { path: path.display().to_string(), detail: error.to_string() }
}

/// A token file that this process made; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    token: String,
}

impl TokenFile {
    /// Makes a new token and writes it for the other ranks of this machine.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let failed = |error: io::Error| failed(path, &error);
        let mut random = [0u8; TOKEN_BYTES];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(failed)?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        // A name that nobody can have prepared, and O_EXCL: no link is followed. The rename then
        // replaces whatever stands in the way, also what a killed run left.
        let draft = path.with_extension(format!("{token}.tmp"));
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            options.open(&draft)?.write_all(token.as_bytes())?;
            fs::rename(&draft, path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&draft);
            failed(error)
        })?;
        Ok(Self { path: path.to_owned(), token })
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // A later run on the same port may have put its own in place.
        if read(&self.path).is_ok_and(|token| token.as_deref() == Some(&self.token)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Reads the token; `None` while there is no file yet.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, &error)),
    };
    let metadata = file.metadata().map_err(|error| failed(path, &error))?;
    let distrust = |detail: &str| {
        Err(CommError::TokenFile { path: path.display().to_string(), detail: detail.into() })
    };
    if !metadata.is_file() || metadata.uid() != own_user(path)? {
        return distrust("it is not a file of this user; remove it, or set BONFIRE_TOKEN");
    }
    if metadata.mode() & 0o077 != 0 {
        return distrust("others may read it; remove it, or set BONFIRE_TOKEN");
    }
    let mut token = String::new();
    file.take(MAX_TOKEN_BYTES).read_to_string(&mut token).map_err(|error| failed(path, &error))?;
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_token_is_private_read_back_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.token");
        assert_eq!(read(&path).unwrap(), None);
        let file = TokenFile::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap().as_deref(), Some(file.token()));
        let newer = TokenFile::create(&path).unwrap();
        drop(file);
        assert_eq!(read(&path).unwrap().as_deref(), Some(newer.token()));
        drop(newer);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_others_can_read_or_a_link_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.token");
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("others may read it"));
        let link = directory.path().join("b.token");
        symlink(&path, &link).unwrap();
        assert!(read(&link).is_err());
    }
}
