//! What must not outlive the ranks of a world.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The places where something could be left: token files, named shared memory, processes.
pub(crate) struct Remains {
    run_id: String,
    /// Where the ranks keep their token file.
    directory: tempfile::TempDir,
    shared_memory_before: BTreeSet<String>,
}

impl Remains {
    /// Looks around before the ranks with that run id are started.
    pub(crate) fn of(run_id: &str) -> Self {
        Self {
            run_id: run_id.to_owned(),
            directory: tempfile::tempdir().unwrap(),
            shared_memory_before: shared_memory_files(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What is there now, in words.
    pub(crate) fn found(&self) -> Option<String> {
        let files = fs::read_dir(self.directory()).unwrap();
        let mut found: Vec<_> =
            files.map(|file| file.unwrap().path().display().to_string()).collect();
        let now = shared_memory_files();
        found.extend(now.difference(&self.shared_memory_before).cloned());
        found.extend(processes_of(&self.run_id));
        (!found.is_empty()).then(|| found.join(", "))
    }
}

/// Files in the folder of named shared memory that could be ours.
fn shared_memory_files() -> BTreeSet<String> {
    let Ok(files) = fs::read_dir("/dev/shm") else { return BTreeSet::new() };
    files
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .filter(|name| name.contains("bonfire"))
        .collect()
}

/// Processes with that run id in their environment.
fn processes_of(run_id: &str) -> Vec<String> {
    let variable = format!("BONFIRE_RUN_ID={run_id}");
    let belongs = |path: &Path| {
        let variables = fs::read(path.join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    };
    let entries = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    entries.filter(|path| belongs(path)).map(|path| path.display().to_string()).collect()
}
