//! Ranges of time that NVIDIA's profilers show.

/// A range of the calling thread's time, from its making to its end. Nothing without feature `nvtx`,
/// or without the library `libnvToolsExt.so.1` or `libnvtx3interop.so.1`.
#[derive(Debug)]
#[must_use = "a range ends when it is dropped"]
pub struct Range {
    #[cfg(feature = "nvtx")]
    functions: Option<&'static nvtx::Functions>,
}

/// Begins a range.
#[inline]
pub fn range(name: &str) -> Range {
    range_of(|| name.to_owned())
}

/// As [`range`], with a name that is made only where somebody sees it.
#[inline]
pub fn range_of(name: impl FnOnce() -> String) -> Range {
    #[cfg(feature = "nvtx")]
    {
        let functions = nvtx::Functions::get();
        if let Some(functions) = functions {
            functions.push(&name());
        }
        Range { functions }
    }
    #[cfg(not(feature = "nvtx"))]
    {
        let _ = name;
        Range {}
    }
}

#[cfg(feature = "nvtx")]
impl Drop for Range {
    fn drop(&mut self) {
        if let Some(functions) = self.functions {
            functions.pop();
        }
    }
}

#[cfg(feature = "nvtx")]
#[allow(unsafe_code, reason = "calls into NVIDIA's library")]
mod nvtx {
    use std::ffi::{CString, OsStr, c_char, c_int};
    use std::sync::OnceLock;

    use crate::cuda::Places;

    const FILES: [&str; 2] = ["libnvtx3interop.so.1", "libnvToolsExt.so.1"];

    /// The functions of nvToolsExt.h that make ranges.
    #[derive(Debug)]
    pub(super) struct Functions {
        push: unsafe extern "C" fn(*const c_char) -> c_int,
        pop: unsafe extern "C" fn() -> c_int,
    }

    impl Functions {
        pub(super) fn get() -> Option<&'static Self> {
            static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
            FUNCTIONS.get_or_init(Self::open).as_ref()
        }

        fn open() -> Option<Self> {
            let places = Places::of_process(None);
            let functions = FILES.into_iter().find_map(|file| {
                let found = places.library(file, |name| load(OsStr::new(name)).is_some()).ok()?;
                Self::of(load(&found.target())?)
            });
            if functions.is_none() {
                tracing::warn!("no ranges for profilers: none of {FILES:?} is there");
            }
            functions
        }

        fn of(library: libloading::Library) -> Option<Self> {
            // SAFETY: the types are those of the declarations in nvToolsExt.h.
            let functions = unsafe {
                Self {
                    push: *library.get(b"nvtxRangePushA\0").ok()?,
                    pop: *library.get(b"nvtxRangePop\0").ok()?,
                }
            };
            // The functions are used until the process ends.
            std::mem::forget(library);
            Some(functions)
        }

        pub(super) fn push(&self, name: &str) {
            let Ok(name) = CString::new(name) else { return };
            // SAFETY: a string that ends in a zero, and is copied.
            unsafe { (self.push)(name.as_ptr()) };
        }

        pub(super) fn pop(&self) {
            // SAFETY: ends the range that was begun last on this thread.
            unsafe { (self.pop)() };
        }
    }

    fn load(target: &OsStr) -> Option<libloading::Library> {
        // SAFETY: NVIDIA's library has no initialisers that could do harm.
        unsafe { libloading::Library::new(target) }.ok()
    }
}
