//! What has to be there before a GPU is used.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaContext;

use super::search::Places;
use crate::sync::lock;
use crate::{CommError, Result};

/// The version that the bindings ask for.
const MAJOR: u32 = 13;
/// What the run-time compiler includes, the second from the first; some Python packages have one
/// without the other.
const HEADERS: [&str; 3] = ["include/cuda_fp16.h", "include/mma.h", "include/crt/mma.h"];
const DRIVER_REMEDY: &str = "install NVIDIA's driver (580 or later) on this machine, and give a \
                             container access to it (docker run --gpus all)";
const NVRTC_REMEDY: &str = "`pip install nvidia-cuda-nvrtc` into the virtual environment in use, or \
                            install CUDA 13 and set LD_LIBRARY_PATH to its lib64";

fn unavailable(ordinal: usize, reason: impl Into<String>, remedy: impl Into<String>) -> CommError {
    let (device, reason, remedy) = (format!("cuda:{ordinal}"), reason.into(), remedy.into());
    CommError::DeviceUnavailable { device, reason, remedy }
}

/// Finds the run-time compiler and its headers, so that they are used wherever they lie.
///
/// Both may come from Python packages. Sets `CUDA_PATH` if it is not set and there is no complete
/// toolkit in the usual places. Call it first thing in `main`; [`check`] tells what is missing.
///
/// # Safety
/// No other thread runs yet: the environment is written.
#[allow(unsafe_code, reason = "the environment is written, before there are threads")]
pub unsafe fn prepare() {
    let places = Places::of_process(None);
    let usable = toolkit().is_some_and(|toolkit| missing_header(&toolkit).is_none());
    if std::env::var_os("CUDA_PATH").is_none()
        && !usable
        && let Some(found) =
            places.toolkits().into_iter().find(|folder| missing_header(folder).is_none())
    {
        // SAFETY: by the caller, nobody reads the environment meanwhile.
        unsafe { std::env::set_var("CUDA_PATH", found) };
    }
}

/// Checks that a GPU can be used: the driver, the GPU itself, the run-time compiler, its headers.
///
/// # Errors
/// [`CommError::DeviceUnavailable`] says what is missing and what to do about it.
pub fn check(ordinal: usize) -> Result<()> {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    expect_device(ordinal, count_devices(ordinal)?, visible.as_deref())?;
    load_compiler(ordinal, &Places::of_process(None))?;
    expect_headers(ordinal, toolkit().as_deref())
}

/// Returns how many GPUs this process sees.
///
/// # Errors
/// [`CommError::DeviceUnavailable`] without a driver, for the device `ordinal` in its message.
pub fn count_devices(ordinal: usize) -> Result<usize> {
    expect_driver(ordinal, has_driver())?;
    let count = CudaContext::device_count().map_err(|error| {
        let reason = format!("the driver does not start: {error}");
        unavailable(ordinal, reason, "look at `nvidia-smi`; it has to work first")
    })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The context of a GPU that the whole process shares.
pub(crate) fn context(ordinal: usize) -> Result<Arc<CudaContext>> {
    static OPEN: Mutex<BTreeMap<usize, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());
    let mut open = lock(&OPEN);
    if let Some(context) = open.get(&ordinal) {
        return Ok(context.clone());
    }
    expect_driver(ordinal, has_driver())?;
    let context = CudaContext::new(ordinal).map_err(|error| {
        unavailable(ordinal, format!("it cannot be opened: {error}"), "look at `nvidia-smi`")
    })?;
    open.insert(ordinal, context.clone());
    Ok(context)
}

fn expect_device(ordinal: usize, count: usize, visible: Option<&str>) -> Result<()> {
    if ordinal < count {
        return Ok(());
    }
    let visible = visible.map_or_else(|| "is not set".to_owned(), |list| format!("= {list:?}"));
    let reason =
        format!("{count} device(s) are visible to this process, CUDA_VISIBLE_DEVICES {visible}");
    let remedy = "start no more ranks on a machine than it has devices, or make more visible";
    Err(unavailable(ordinal, reason, remedy))
}

#[allow(unsafe_code, reason = "opens a library")]
fn has_driver() -> bool {
    // SAFETY: only opens the library.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

fn expect_driver(ordinal: usize, present: bool) -> Result<()> {
    if present {
        return Ok(());
    }
    Err(unavailable(ordinal, "there is no driver here (libcuda.so.1)", DRIVER_REMEDY))
}

/// Opens the run-time compiler, which from then on is found by its name.
fn load_compiler(ordinal: usize, places: &Places) -> Result<()> {
    let file = format!("libnvrtc.so.{MAJOR}");
    let found = places.library(&file, |name| open(OsStr::new(name)).is_ok());
    let found = found.map_err(|tried| no_compiler(ordinal, &file, &tried))?;
    open(&found.target()).map_err(|reason| no_compiler(ordinal, &reason, &[]))
}

fn no_compiler(ordinal: usize, what: &str, tried: &[String]) -> CommError {
    let reason = match tried {
        [] => format!("the run-time compiler does not open ({what})"),
        tried => format!("no run-time compiler ({what}) in {}", tried.join(", ")),
    };
    unavailable(ordinal, reason, NVRTC_REMEDY)
}

/// Opens a library for good.
#[allow(unsafe_code, reason = "opens a library")]
fn open(target: &OsStr) -> Result<(), String> {
    // SAFETY: NVIDIA's libraries have no initialisers that could do harm.
    match unsafe { libloading::Library::new(target) } {
        Ok(library) => {
            std::mem::forget(library);
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The toolkit that Burn takes headers from.
fn toolkit() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CUDA_PATH") {
        return Some(path.into());
    }
    let usual = [("/usr/local/cuda", ""), ("/opt/cuda", ""), ("/usr", "bin/nvcc")];
    let mut usual = usual.into_iter().map(|(folder, file)| (PathBuf::from(folder), file));
    usual.find(|(folder, file)| folder.join(file).exists()).map(|(folder, _)| folder)
}

/// The first file that a toolkit lacks, whole.
fn missing_header(toolkit: &Path) -> Option<PathBuf> {
    HEADERS.into_iter().map(|header| toolkit.join(header)).find(|header| !header.is_file())
}

fn expect_headers(ordinal: usize, toolkit: Option<&Path>) -> Result<()> {
    const REMEDY: &str = "set CUDA_PATH to a folder of CUDA 13 that has include/crt/mma.h, or \
                          `pip install nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt` into \
                          the virtual environment in use";
    let Some(toolkit) = toolkit else {
        return Err(unavailable(ordinal, "no CUDA headers: there is no toolkit", REMEDY));
    };
    match missing_header(toolkit) {
        None => Ok(()),
        Some(missing) => {
            let reason = format!("no CUDA headers (no {})", missing.display());
            Err(unavailable(ordinal, reason, REMEDY))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_told_with_what_to_install() {
        let text = expect_driver(1, false).unwrap_err().to_string();
        assert!(text.starts_with("device \"cuda:1\" cannot be used: there is no driver"), "{text}");
        assert!(text.contains("install NVIDIA's driver"), "{text}");
    }

    #[test]
    fn a_missing_or_broken_compiler_is_told_with_what_to_install() {
        let packages = tempfile::tempdir().unwrap();
        let site_packages = vec![packages.path().to_path_buf()];
        let places = Places { named: None, site_packages, system: false };
        let text = load_compiler(0, &places).unwrap_err().to_string();
        let place = packages.path().join("nvidia").display().to_string();
        assert!(text.contains("no run-time compiler (libnvrtc.so.13) in "), "{text}");
        assert!(text.contains(&place) && text.contains("pip install nvidia-cuda-nvrtc"), "{text}");

        let lib = packages.path().join("nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::write(lib.join("libnvrtc.so.13"), b"no library").unwrap();
        let text = load_compiler(0, &places).unwrap_err().to_string();
        assert!(text.contains("the run-time compiler does not open ("), "{text}");
    }

    #[test]
    fn missing_headers_are_told_by_name_with_what_to_install() {
        let text = expect_headers(0, None).unwrap_err().to_string();
        assert!(text.contains("there is no toolkit; set CUDA_PATH"), "{text}");
        let toolkit = tempfile::tempdir().unwrap();
        // Each is missed until it is there.
        for header in HEADERS {
            let text = expect_headers(0, Some(toolkit.path())).unwrap_err().to_string();
            let path = toolkit.path().join(header);
            assert!(text.contains(&format!("no CUDA headers (no {})", path.display())), "{text}");
            assert!(text.contains("nvidia-cuda-crt"), "{text}");
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        expect_headers(0, Some(toolkit.path())).unwrap();
    }

    #[test]
    fn more_ranks_than_devices_are_told_so() {
        expect_device(1, 2, None).unwrap();
        let text = expect_device(2, 2, Some("0,1")).unwrap_err().to_string();
        assert!(text.starts_with("device \"cuda:2\" cannot be used: 2 device(s)"), "{text}");
        assert!(text.contains("CUDA_VISIBLE_DEVICES = \"0,1\"; start no more ranks"), "{text}");
        let text = expect_device(0, 0, None).unwrap_err().to_string();
        assert!(text.contains("CUDA_VISIBLE_DEVICES is not set"), "{text}");
    }

    #[test]
    fn a_machine_without_a_driver_says_so_and_does_not_panic() {
        if has_driver() {
            return;
        }
        for error in [check(0).unwrap_err(), count_devices(3).unwrap_err()] {
            assert!(error.to_string().contains("there is no driver here"), "{error}");
        }
        assert!(context(0).is_err() && super::super::Event::new(0).is_err());
    }
}
