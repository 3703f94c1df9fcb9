//! Where shared libraries and headers lie.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The places that may have them, from the environment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// What a variable of ours names: a file, or a folder with it.
    pub(crate) named: Option<(&'static str, PathBuf)>,
    /// `site-packages` of the virtual environments in use.
    pub(crate) site_packages: Vec<PathBuf>,
    /// Whether the system's own search (`LD_LIBRARY_PATH`, `ldconfig`) counts.
    pub(crate) system: bool,
}

/// A library that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// At this path.
    At(PathBuf),
    /// Under this name, by the system's own search.
    Named(String),
}

impl Found {
    /// What to open.
    pub(crate) fn target(&self) -> OsString {
        match self {
            Self::At(path) => path.clone().into_os_string(),
            Self::Named(name) => name.into(),
        }
    }
}

impl Places {
    /// Reads the environment of this process.
    pub(crate) fn of_process(variable: Option<&'static str>) -> Self {
        Self::of(variable, |name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn of(variable: Option<&'static str>, lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let named = variable.and_then(|name| Some((name, PathBuf::from(lookup(name)?))));
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&lookup);
        let mut prefixes: Vec<PathBuf> = prefixes.map(PathBuf::from).collect();
        // A virtual environment that is used without having been activated.
        let path = lookup("PATH").unwrap_or_default();
        let python = std::env::split_paths(&path).find(|folder| folder.join("python3").exists());
        prefixes.extend(python.and_then(|folder| folder.parent().map(Path::to_path_buf)));
        let mut site_packages = Vec::new();
        for prefix in prefixes {
            for folder in folders(&prefix.join("lib")) {
                let is_python = folder
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("python3"));
                let packages = folder.join("site-packages");
                if is_python && packages.is_dir() && !site_packages.contains(&packages) {
                    site_packages.push(packages);
                }
            }
        }
        Self { named, site_packages, system: true }
    }

    /// Finds a library by the file name that its package has. `opens` tells whether the system finds
    /// a name by itself. In a virtual environment it lies in `nvidia/<package>/lib`.
    ///
    /// # Errors
    /// The places that were looked at.
    pub(crate) fn library(
        &self,
        file: &str,
        opens: impl Fn(&str) -> bool,
    ) -> Result<Found, Vec<String>> {
        let mut tried = Vec::new();
        if let Some((variable, path)) = &self.named {
            let path = if path.is_dir() { path.join(file) } else { path.clone() };
            // A path that was named is never passed over in silence.
            return match path.is_file() {
                true => Ok(Found::At(path)),
                false => Err(vec![format!("{variable} = {}", path.display())]),
            };
        }
        if self.system {
            if opens(file) {
                return Ok(Found::Named(file.to_owned()));
            }
            tried.push("LD_LIBRARY_PATH and ldconfig".to_owned());
        }
        for packages in &self.site_packages {
            tried.push(packages.join("nvidia").display().to_string());
            for package in folders(&packages.join("nvidia")) {
                let path = package.join("lib").join(file);
                if path.is_file() {
                    return Ok(Found::At(path));
                }
            }
        }
        Err(tried)
    }

    /// Folders that may be a CUDA toolkit, after `CUDA_PATH` and the system's.
    pub(crate) fn toolkits(&self) -> Vec<PathBuf> {
        let packages = self.site_packages.iter().flat_map(|packages| {
            let nvidia = folders(&packages.join("nvidia"));
            nvidia.into_iter().chain([packages.join("triton/backends/nvidia")])
        });
        packages.filter(|folder| folder.join("include").is_dir()).collect()
    }
}

/// Folders within a folder, in the order of their names.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const NCCL: &str = "libnccl.so.2";

    fn environment(root: &Path) -> PathBuf {
        let lib = root.join("venv/lib/python3.12/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir_all(root.join("venv/bin")).unwrap();
        std::fs::write(lib.join(NCCL), b"").unwrap();
        std::fs::write(root.join("venv/bin/python3"), b"").unwrap();
        lib.join(NCCL)
    }

    fn places(pairs: &[(&str, PathBuf)]) -> Places {
        Places::of(Some("BONFIRE_NCCL_PATH"), |name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.clone().into_os_string())
        })
    }

    #[test]
    fn a_virtual_environment_is_found_activated_or_by_its_python() {
        let root = tempfile::tempdir().unwrap();
        let file = environment(root.path());
        for places in [
            places(&[("VIRTUAL_ENV", root.path().join("venv"))]),
            places(&[("CONDA_PREFIX", root.path().join("venv"))]),
            places(&[("PATH", root.path().join("venv/bin"))]),
        ] {
            assert_eq!(places.library(NCCL, |_| false), Ok(Found::At(file.clone())));
            assert_eq!(places.library(NCCL, |_| true), Ok(Found::Named(NCCL.into())));
        }
    }

    #[test]
    fn a_path_that_was_named_is_taken_or_an_error() {
        let root = tempfile::tempdir().unwrap();
        let file = environment(root.path());
        let folder = file.parent().unwrap().to_path_buf();
        for named in [file.clone(), folder] {
            let places = places(&[("BONFIRE_NCCL_PATH", named)]);
            assert_eq!(places.library(NCCL, |_| true), Ok(Found::At(file.clone())));
        }
        let places = places(&[("BONFIRE_NCCL_PATH", root.path().join("nowhere"))]);
        let tried = places.library(NCCL, |_| true).unwrap_err();
        assert!(tried[0].starts_with("BONFIRE_NCCL_PATH = ") && tried.len() == 1, "{tried:?}");
    }

    #[test]
    fn all_places_without_it_are_told() {
        let root = tempfile::tempdir().unwrap();
        environment(root.path());
        let places = places(&[("VIRTUAL_ENV", root.path().join("venv"))]);
        let tried = places.library("libnvrtc.so.13", |_| false).unwrap_err();
        assert_eq!(tried[0], "LD_LIBRARY_PATH and ldconfig");
        assert!(tried[1].ends_with("venv/lib/python3.12/site-packages/nvidia"), "{tried:?}");
    }
}
