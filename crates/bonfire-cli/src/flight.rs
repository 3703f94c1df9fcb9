//! The flight recorder on the command line: dumps of a run, and `bonfire analyze`.

use crate::CliError;
use crate::args::AnalyzeArgs;
use crate::exit::Outcome;
use crate::report::say;
use bonfire_comm::flight::{FOLDER_VARIABLE, Recorder, analyze, dump_on_signal};
use signal_hook::consts::SIGUSR2;
use signal_hook::iterator::{Handle, Signals};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// `bonfire analyze`: says in words what the dumps of a folder show.
#[allow(clippy::print_stdout, reason = "the report is what was asked for")]
pub(crate) fn analyze_dumps(args: &AnalyzeArgs) -> Result<Outcome, CliError> {
    let report = analyze(&args.folder)?;
    if args.json {
        let json = serde_json::to_string_pretty(&report).map_err(|error| CliError::Io {
            action: "encoding",
            path: args.folder.clone(),
            source: error.into(),
        })?;
        println!("{json}");
    } else {
        println!("{report}");
    }
    Ok(Outcome::Done)
}

/// Where the ranks of a run leave their dumps.
pub(crate) fn folder(out: Option<&Path>) -> PathBuf {
    match (std::env::var_os(FOLDER_VARIABLE), out) {
        (Some(folder), _) => folder.into(),
        (None, Some(out)) => out.join("flight"),
        (None, None) => std::env::temp_dir().join("bonfire-flight"),
    }
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
    /// Starts to listen.
    ///
    /// # Errors
    /// When the system refuses the handler or the thread.
    pub(crate) fn start(recorder: &Arc<Recorder>, folder: PathBuf) -> std::io::Result<Self> {
        recorder.dump_on_failure(&folder);
        let mut signals = Signals::new([SIGUSR2])?;
        let handle = signals.handle();
        let recorder = recorder.clone();
        let thread =
            std::thread::Builder::new().name("flight recorder".into()).spawn(move || {
                for _ in signals.forever() {
                    dump_on_signal(&recorder, &folder);
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
