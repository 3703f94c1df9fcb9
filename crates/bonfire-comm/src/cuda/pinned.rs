//! Host memory that a GPU writes to by itself.

use std::any::Any;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::{Event, context};
use crate::device_buffer::DeviceEvent;
use crate::sync::lock;
use crate::{CommError, Result};

/// Most elements that can be read at once.
const ROOM: usize = 64;

/// Blocks that nobody uses. Page-locked memory is kept: the driver stops all streams to allocate it.
static FREE: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// Page-locked memory of [`ROOM`] elements, never given back.
struct Block {
    ordinal: usize,
    pointer: *mut f32,
}

// SAFETY: the memory belongs to this value alone, and page-locked memory to no thread.
#[allow(unsafe_code, reason = "a pointer that is owned")]
unsafe impl Send for Block {}

impl Block {
    fn take(ordinal: usize) -> Result<Self> {
        let mut free = lock(&FREE);
        if let Some(index) = free.iter().position(|block| block.ordinal == ordinal) {
            return Ok(free.swap_remove(index));
        }
        drop(free);
        let refused = |error: cudarc::driver::DriverError| CommError::Device {
            what: "allocate page-locked memory".into(),
            detail: error.to_string(),
        };
        context(ordinal)?.bind_to_thread().map_err(refused)?;
        #[allow(unsafe_code, reason = "allocates by the driver")]
        // SAFETY: the context is current; the memory is kept until the process ends.
        let pointer = unsafe { result::malloc_host(ROOM * size_of::<f32>(), 0) };
        Ok(Self { ordinal, pointer: pointer.map_err(refused)?.cast() })
    }
}

/// A few f32 in page-locked memory, and the mark behind the copy that fills them.
pub struct Pinned {
    block: Option<Block>,
    len: usize,
    copied: Event,
    begun: bool,
    keep_alive: Option<Box<dyn Any + Send>>,
}

impl Pinned {
    /// Takes room for `len` elements, at most 64.
    ///
    /// # Errors
    /// [`CommError::Device`] when the driver refuses, or for more elements.
    pub fn new(ordinal: usize, len: usize) -> Result<Self> {
        if len > ROOM {
            let (what, detail) = ("read figures".into(), format!("{len} of them, at most {ROOM}"));
            return Err(CommError::Device { what, detail });
        }
        let (block, copied) = (Some(Block::take(ordinal)?), Event::new(ordinal)?);
        Ok(Self { block, len, copied, begun: false, keep_alive: None })
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
        let Some(block) = &self.block else { return Err("there is no memory".into()) };
        self.begun = true;
        // SAFETY: the memory is ours and nobody reads it before the mark.
        let target = unsafe { std::slice::from_raw_parts_mut(block.pointer, self.len) };
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
        let Some(block) = &self.block else { return Err("there is no memory".into()) };
        // SAFETY: the copy has ended, and the memory is ours.
        Ok(unsafe { std::slice::from_raw_parts(block.pointer, self.len) }.to_vec())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        if !self.begun || self.copied.is_complete() == Ok(true) {
            lock(&FREE).push(block);
            return;
        }
        // The device may still write to it, from what it keeps alive.
        std::mem::forget((block, self.keep_alive.take()));
    }
}
