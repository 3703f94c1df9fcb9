//! Events of CUDA's driver.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, result, sys};

use super::context;
use crate::device_buffer::DeviceEvent;
use crate::{CommError, Result};

/// An event of a GPU. It has a time, so that what lies between two of them can be measured.
pub struct Event(CudaEvent);

impl Event {
    /// Makes an event on a GPU, to be recorded by [`record`](Self::record).
    ///
    /// # Errors
    /// [`CommError::Device`] when the driver refuses, [`CommError::DeviceUnavailable`] without one.
    pub fn new(ordinal: usize) -> Result<Self> {
        Self::on(&context(ordinal)?)
            .map_err(|detail| CommError::Device { what: "make an event".into(), detail })
    }

    pub(crate) fn on(context: &Arc<CudaContext>) -> Result<Self, String> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        context.new_event(flags).map(Self).map_err(|error| error.to_string())
    }

    /// Records the event behind all work on a stream (`CUstream`).
    ///
    /// # Safety
    /// `stream` is a live stream of the event's GPU, whose context is current on this thread.
    ///
    /// # Errors
    /// The driver's own words.
    #[allow(unsafe_code, reason = "a stream of another crate")]
    pub unsafe fn record(&self, stream: u64) -> Result<(), String> {
        // SAFETY: the caller's stream is live, and so is the event.
        unsafe { result::event::record(self.0.cu_event(), stream as sys::CUstream) }
            .map_err(|error| error.to_string())
    }

    /// Makes a stream wait for an event that has been recorded.
    ///
    /// # Safety
    /// `stream` is a live stream, and `event` a recorded event, of one GPU whose context is current
    /// on this thread.
    ///
    /// # Errors
    /// The driver's own words.
    #[allow(unsafe_code, reason = "a stream of another crate")]
    pub unsafe fn make_wait(stream: u64, event: &dyn DeviceEvent) -> Result<(), String> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let event = event.raw() as sys::CUevent;
        // SAFETY: by the caller, both are live and of the current context.
        unsafe { result::stream::wait_event(stream as sys::CUstream, event, flags) }
            .map_err(|error| error.to_string())
    }
}

impl DeviceEvent for Event {
    fn raw(&self) -> u64 {
        self.0.cu_event() as u64
    }

    fn is_complete(&self) -> Result<bool, String> {
        self.0.try_is_complete().map_err(|error| error.to_string())
    }
}
