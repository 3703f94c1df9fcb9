use crate::CliError;
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
    _file: Flock<File>,
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
                    lock.set_len(0).map_err(failed("writing"))?;
                    write!(lock, "{}", std::process::id()).map_err(failed("writing"))?;
                    return Ok(Self { _file: lock });
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
