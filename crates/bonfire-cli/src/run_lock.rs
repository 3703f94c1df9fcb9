use crate::CliError;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a run that was killed may take to let go of its folder.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// Keeps other runs out of a run's folder; the system lets go of it when this process ends, however it
/// does.
pub(crate) struct RunLock {
    /// `None` where the file system has no locks.
    _file: Option<Flock<File>>,
}

impl RunLock {
    /// Takes the folder, which exists.
    ///
    /// # Errors
    /// [`CliError::FolderBusy`] when another process trains in it.
    pub(crate) fn take(folder: &Path) -> Result<Self, CliError> {
        let path = folder.join(".lock");
        let failed = |action| {
            let path = path.clone();
            move |source| CliError::Io { action, path, source }
        };
        let start = Instant::now();
        loop {
            let options =
                File::options().read(true).write(true).create(true).truncate(false).open(&path);
            let file = options.map_err(failed("opening"))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut lock) => {
                    // Who it is is told for convenience: a full disk does not keep a run from going on.
                    drop(lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id())));
                    return Ok(Self { _file: Some(lock) });
                }
                Err((_, reason)) if reason != Errno::EWOULDBLOCK => {
                    tracing::warn!(
                        "\"{}\" cannot be locked ({reason}): see to it that one run at a time trains there",
                        path.display()
                    );
                    return Ok(Self { _file: None });
                }
                Err((mut file, _)) if start.elapsed() > PATIENCE => {
                    let mut owner = String::new();
                    drop(file.read_to_string(&mut owner));
                    return Err(CliError::FolderBusy { path: folder.to_path_buf(), owner });
                }
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }
}
