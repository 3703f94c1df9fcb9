//! NCCL's functions, as nccl.h declares them.
//!
//! Bindings of our own, since the library has to be opened by its path: pip and the distributions
//! ship `libnccl.so.2`, and nothing but that name.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::cuda::Places;
use crate::{CommError, EngineKind, Result};

/// The name that the library is shipped by.
const FILE: &str = "libnccl.so.2";
const VARIABLE: &str = "BONFIRE_NCCL_PATH";
const REMEDY: &str = "`pip install nvidia-nccl-cu13` into the virtual environment in use, install \
                      the package libnccl2, or set BONFIRE_NCCL_PATH to the file";
/// The first version with connections that are made without blocking.
const OLDEST: u32 = 2_14_00;

pub(super) type Comm = *mut c_void;
pub(super) type Stream = *mut c_void;
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const IN_PROGRESS: Status = 7;

pub(super) const ID_BYTES: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; ID_BYTES]);

/// The first fields of `ncclConfig_t`: those of version 2.14, which every later version accepts and
/// completes by its defaults.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl Config {
    pub(super) fn non_blocking() -> Self {
        let size = std::mem::size_of::<Self>();
        Self { size, magic: 0xcafe_beef, version: 21400, blocking: 0 }
    }
}

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that the engine calls.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            version: u32,
        }

        impl Functions {
            /// Looks all of them up.
            fn of(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the declaration in nccl.h.
                        let symbol = unsafe { library.get($symbol) };
                        *symbol.map_err(|error| error.to_string())?
                    },)*
                    version: 0,
                })
            }
        }
    };
}

functions! {
    get_version = b"ncclGetVersion\0": fn(*mut c_int) -> Status;
    get_unique_id = b"ncclGetUniqueId\0": fn(*mut UniqueId) -> Status;
    comm_init_rank_config = b"ncclCommInitRankConfig\0":
        fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Status;
    comm_get_async_error = b"ncclCommGetAsyncError\0": fn(Comm, *mut Status) -> Status;
    comm_finalize = b"ncclCommFinalize\0": fn(Comm) -> Status;
    comm_destroy = b"ncclCommDestroy\0": fn(Comm) -> Status;
    comm_abort = b"ncclCommAbort\0": fn(Comm) -> Status;
    get_error_string = b"ncclGetErrorString\0": fn(Status) -> *const c_char;
    get_last_error = b"ncclGetLastError\0": fn(Comm) -> *const c_char;
    group_start = b"ncclGroupStart\0": fn() -> Status;
    group_end = b"ncclGroupEnd\0": fn() -> Status;
    all_reduce = b"ncclAllReduce\0":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status;
    reduce = b"ncclReduce\0":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> Status;
    broadcast = b"ncclBroadcast\0":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status;
    all_gather = b"ncclAllGather\0":
        fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> Status;
    reduce_scatter = b"ncclReduceScatter\0":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status;
    send = b"ncclSend\0": fn(*const c_void, usize, c_int, c_int, Comm, Stream) -> Status;
    recv = b"ncclRecv\0": fn(*mut c_void, usize, c_int, c_int, Comm, Stream) -> Status;
}

impl Functions {
    /// Opens the library, once.
    ///
    /// # Errors
    /// [`CommError::EngineUnavailable`] names the places that were searched.
    pub(super) fn get() -> Result<&'static Self> {
        static FUNCTIONS: OnceLock<Result<Functions>> = OnceLock::new();
        let opened = FUNCTIONS.get_or_init(|| Self::open(&Places::of_process(Some(VARIABLE))));
        opened.as_ref().map_err(Clone::clone)
    }

    fn open(places: &Places) -> Result<Self> {
        let found = places
            .library(FILE, |name| load(OsStr::new(name)).is_ok())
            .map_err(|tried| unavailable(format!("no {FILE} in {}", tried.join(", "))))?;
        let target = found.target();
        let failed = |reason: String| unavailable(format!("{} {reason}", target.to_string_lossy()));
        let library = load(&target).map_err(|error| failed(format!("does not open: {error}")))?;
        let mut functions =
            Self::of(&library).map_err(|error| failed(format!("lacks a function: {error}")))?;
        // The functions are used until the process ends.
        std::mem::forget(library);
        let mut version = 0;
        // SAFETY: writes one number.
        let status = unsafe { (functions.get_version)(&raw mut version) };
        functions.version = u32::try_from(version).unwrap_or(0);
        if status != SUCCESS || functions.version < OLDEST {
            return Err(failed(format!("has version {version}, which is older than {OLDEST}")));
        }
        tracing::debug!(path = %target.to_string_lossy(), version, "opened NCCL");
        Ok(functions)
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// What a status means, in NCCL's words.
    pub(super) fn explain(&self, status: Status, comm: Comm) -> String {
        // SAFETY: NCCL takes any number, and a communicator or none.
        let (meaning, last) =
            unsafe { ((self.get_error_string)(status), (self.get_last_error)(comm)) };
        let text = |pointer: *const c_char| {
            if pointer.is_null() {
                return String::new();
            }
            // SAFETY: NCCL's strings end in a zero, and live as long as the library.
            unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
        };
        match (text(meaning), text(last)) {
            (meaning, last) if last.is_empty() || last == meaning => {
                format!("{meaning} (set NCCL_DEBUG=WARN for more)")
            }
            (meaning, last) => format!("{meaning}: {} (set NCCL_DEBUG=WARN for more)", last.trim()),
        }
    }
}

fn load(target: &OsStr) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: NVIDIA's library has no initialisers that could do harm.
    unsafe { libloading::Library::new(target) }
}

fn unavailable(reason: String) -> CommError {
    CommError::EngineUnavailable { engine: EngineKind::Nccl, reason, remedy: REMEDY.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(places: &Places) -> String {
        match Functions::open(places) {
            Ok(functions) => format!("opened version {}", functions.version()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_missing_library_is_told_with_the_places_and_the_remedy() {
        let packages = tempfile::tempdir().unwrap();
        let site_packages = vec![packages.path().to_path_buf()];
        let text = error(&Places { site_packages, ..Places::default() });
        let place = packages.path().join("nvidia");
        let start =
            format!("engine \"nccl\" cannot be used: no libnccl.so.2 in {}; ", place.display());
        assert!(text.starts_with(&start), "{text}");
        assert!(text.contains("pip install nvidia-nccl-cu13"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_library_or_another_one_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, b"no library").unwrap();
        let named = |path: &std::path::Path| Places {
            named: Some((VARIABLE, path.to_path_buf())),
            ..Places::default()
        };
        let text = error(&named(&path));
        assert!(text.contains("does not open"), "{text}");
        let text = error(&named(folder.path()));
        assert!(text.contains("does not open"), "{text}");
        let text = error(&named(std::path::Path::new("/nowhere")));
        assert!(text.contains("BONFIRE_NCCL_PATH = /nowhere"), "{text}");
        // A library that every machine has.
        if let Some(other) = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6"]
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
        {
            let text = error(&named(std::path::Path::new(other)));
            assert!(text.contains("lacks a function"), "{text}");
        }
    }
}
