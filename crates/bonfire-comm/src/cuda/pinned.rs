//! Host memory that a GPU writes to by itself.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, result, sys};

use super::{Event, context};
use crate::device_buffer::DeviceEvent;
use crate::{CommError, Result};

/// A few f32 in page-locked memory, and the mark behind the copy that fills them.
pub struct Pinned {
    context: Arc<CudaContext>,
    pointer: *mut f32,
    len: usize,
    copied: Event,
    keep_alive: Option<Box<dyn Any + Send>>,
}

// SAFETY: the memory belongs to this value alone, and page-locked memory to no thread.
#[allow(unsafe_code, reason = "a pointer that is owned")]
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates room for `len` elements.
    ///
    /// # Errors
    /// [`CommError::Device`] when the driver refuses.
    #[allow(unsafe_code, reason = "allocates by the driver")]
    pub fn new(ordinal: usize, len: usize) -> Result<Self> {
        let context = context(ordinal)?;
        let copied = Event::new(ordinal)?;
        let refused = |error: cudarc::driver::DriverError| CommError::Device {
            what: "allocate page-locked memory".into(),
            detail: error.to_string(),
        };
        context.bind_to_thread().map_err(refused)?;
        // SAFETY: the context is current; the memory is given back when this is dropped.
        let pointer = unsafe { result::malloc_host(len.max(1) * size_of::<f32>(), 0) };
        let pointer = pointer.map_err(refused)?.cast::<f32>();
        Ok(Self { context, pointer, len, copied, keep_alive: None })
    }

    /// Begins to copy from a device, on a stream (`CUstream`); `keep_alive` lives until that has
    /// ended.
    ///
    /// # Safety
    /// `source` is the address of as many f32 on the stream's GPU, alive as long as `keep_alive`; the
    /// GPU's context is current on this thread.
    ///
    /// # Errors
    /// The driver's own words.
    #[allow(unsafe_code, reason = "a stream and memory of another crate")]
    pub unsafe fn copy(
        &mut self,
        source: u64,
        stream: u64,
        keep_alive: Box<dyn Any + Send>,
    ) -> Result<(), String> {
        self.keep_alive = Some(keep_alive);
        // SAFETY: the memory is ours and nobody reads it before the mark.
        let target = unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) };
        let raw = stream as sys::CUstream;
        // SAFETY: by the caller.
        unsafe { result::memcpy_dtoh_async(target, source, raw) }
            .map_err(|error| error.to_string())?;
        // SAFETY: by the caller.
        unsafe { self.copied.record(stream) }
    }

    /// Waits for the copy.
    ///
    /// # Errors
    /// The driver's own words, or that the copy did not come within `patience`.
    #[allow(unsafe_code, reason = "reads what the device has written")]
    pub fn read(self, patience: Duration) -> Result<Vec<f32>, String> {
        let deadline = Instant::now() + patience;
        for turn in 0u32.. {
            if self.copied.is_complete()? {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("the device did not come to it within {patience:?}"));
            }
            match turn {
                ..1000 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        // SAFETY: the copy has ended, and the memory is ours.
        Ok(unsafe { std::slice::from_raw_parts(self.pointer, self.len) }.to_vec())
    }
}

impl Drop for Pinned {
    #[allow(unsafe_code, reason = "frees by the driver")]
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // The device may still write to it. SAFETY: it is ours, and nobody uses it hereafter;
            // the driver waits for copies under way.
            let _ = unsafe { result::free_host(self.pointer.cast()) };
        }
    }
}
