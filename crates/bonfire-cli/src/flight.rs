//! The flight recorder on the command line: dumps of a run, and `bonfire analyze`.

use crate::CliError;
use crate::args::AnalyzeArgs;
use crate::exit::Outcome;
use crate::output::print_line;
use crate::voice::say;
use bonfire_comm::flight::{FOLDER_VARIABLE, Recorder, analyze, dump_on_signal};
use bonfire_comm::{CommError, ProcessGroup};
use signal_hook::consts::SIGUSR2;
use signal_hook::iterator::{Handle, Signals};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// `bonfire analyze`: says in words what the dumps of a folder show.
pub(crate) fn analyze_dumps(args: &AnalyzeArgs) -> Result<Outcome, CliError> {
    let report = analyze(&args.folder)?;
    if args.json {
        let json = serde_json::to_string_pretty(&report).map_err(|error| CliError::Io {
            action: "encoding",
            path: args.folder.clone(),
            source: error.into(),
        })?;
        print_line(json)?;
    } else {
        print_line(report)?;
    }
    Ok(Outcome::Done)
}

/// Where the ranks of a run leave their dumps, if that is known before the run has a folder.
pub(crate) fn folder(out: Option<&Path>) -> Option<PathBuf> {
    let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
    named.map(PathBuf::from).or_else(|| out.map(in_run_folder))
}

fn in_run_folder(out: &Path) -> PathBuf {
    out.join("flight")
}

/// Tells all ranks the run's folder, which rank 0 has made, for their dumps and logs.
///
/// # Collective
/// Called by all ranks.
pub(crate) fn agree(
    group: &ProcessGroup,
    run_folder: Option<&Path>,
) -> Result<Option<PathBuf>, CommError> {
    let own = run_folder.map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec());
    let path = group.broadcast_bytes(own, 0)?;
    let path = (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&path)));
    let recorder = group.flight_recorder();
    if let (Some(path), None) = (&path, recorder.folder()) {
        recorder.dump_on_failure(in_run_folder(path));
    }
    Ok(path)
}

/// Tells the user of dumps that a failed run has left in `folder`.
pub(crate) fn tell_of_dumps(folder: &Path) {
    let is_dump =
        |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("flight-rank-");
    let found = std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_dump));
    if found {
        say(format_args!(
            "flight records of the ranks are in {0}: bonfire analyze {0}",
            folder.display()
        ));
    }
}

/// Dumps a rank's recorder at its first failure and at each SIGUSR2, as long as this value lives.
pub(crate) struct DumpOnDemand {
    signals: Handle,
    thread: Option<JoinHandle<()>>,
}

impl DumpOnDemand {
    /// Starts to listen. Without a folder, [`agree`] has to name one.
    ///
    /// # Errors
    /// When the system refuses the handler or the thread.
    pub(crate) fn start(
        recorder: &Arc<Recorder>,
        folder: Option<PathBuf>,
    ) -> std::io::Result<Self> {
        if let Some(folder) = folder {
            recorder.dump_on_failure(folder);
        }
        let mut signals = Signals::new([SIGUSR2])?;
        let handle = signals.handle();
        let recorder = recorder.clone();
        let thread =
            std::thread::Builder::new().name("flight recorder".into()).spawn(move || {
                for _ in signals.forever() {
                    match recorder.folder() {
                        Some(folder) => dump_on_signal(&recorder, &folder),
                        None => {
                            tracing::warn!("no folder for flight records; set {FOLDER_VARIABLE}")
                        }
                    }
                }
            })?;
        Ok(Self { signals: handle, thread: Some(thread) })
    }
}

impl Drop for DumpOnDemand {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(thread) = self.thread.take() {
            // It can only have ended by a panic, which has been reported.
            drop(thread.join());
        }
    }
}
