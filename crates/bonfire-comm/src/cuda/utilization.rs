//! How busy a GPU is, as its driver counts it.

use std::ffi::{CStr, OsStr};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cudarc::driver::sys;
use nvml_wrapper::Nvml;

use super::context;
use crate::sync::lock;

/// Time between two looks. The driver itself averages over a sixth of a second to a second.
const PERIOD: Duration = Duration::from_millis(250);
/// The name that is there with the driver alone; the one without a number comes with packages for
/// development.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Looks from a thread of its own at the share of time in which some kernel runs on a GPU.
#[derive(Debug)]
pub struct Utilization {
    seen: Option<Arc<Mutex<Seen>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Seen {
    sum: f64,
    count: u32,
}

impl Seen {
    fn add(&mut self, share: f64) {
        self.sum += share;
        self.count += 1;
    }

    fn take(&mut self) -> Option<f64> {
        let Self { sum, count } = std::mem::take(self);
        (count > 0).then(|| sum / f64::from(count))
    }
}

impl Utilization {
    /// Begins to look at the GPU of this number, of those that the process sees.
    ///
    /// # Errors
    /// The reason for which nothing can be told, in words: the driver's library for management is missing,
    /// or refuses.
    pub fn watch(ordinal: usize) -> Result<Self, String> {
        let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init();
        let nvml = nvml.map_err(|error| format!("{LIBRARY}: {error}"))?;
        let bus = bus_id(ordinal)?;
        let place = bus.clone();
        let share = move |nvml: &Nvml| {
            let rates = nvml.device_by_pci_bus_id(place.as_str())?.utilization_rates()?;
            Ok::<_, nvml_wrapper::error::NvmlError>(f64::from(rates.gpu) / 100.0)
        };
        // A driver that tells nothing says so now.
        share(&nvml).map_err(|error| format!("GPU {bus}: {error}"))?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let ours = Arc::downgrade(&seen);
        let look = move || {
            let mut told = false;
            while let Some(seen) = ours.upgrade() {
                match share(&nvml) {
                    Ok(share) => lock(&seen).add(share),
                    Err(error) if !std::mem::replace(&mut told, true) => {
                        tracing::warn!("how busy GPU {bus} is cannot be told: {error}");
                    }
                    Err(_) => {}
                }
                drop(seen);
                thread::sleep(PERIOD);
            }
        };
        let thread = thread::Builder::new().name("bonfire-nvml".into()).spawn(look);
        let thread = thread.map_err(|error| format!("no thread to look with: {error}"))?;
        Ok(Self { seen: Some(seen), thread: Some(thread) })
    }

    /// The mean since this was last asked for, from 0 to 1; `None` if nobody has looked since.
    pub fn take(&mut self) -> Option<f64> {
        self.seen.as_ref().and_then(|seen| lock(seen).take())
    }
}

impl Drop for Utilization {
    fn drop(&mut self) {
        // The thread ends when nobody asks any more.
        self.seen = None;
        if let Some(thread) = self.thread.take() {
            // It can only have ended by a panic, which has been reported.
            drop(thread.join());
        }
    }
}

/// The place of a GPU on the bus, by which the driver's library for management knows it: it does not heed
/// `CUDA_VISIBLE_DEVICES`.
#[allow(unsafe_code, reason = "the driver writes into memory that it is lent")]
fn bus_id(ordinal: usize) -> Result<String, String> {
    const LEN: usize = 32;
    let context = context(ordinal).map_err(|error| error.to_string())?;
    let mut text = [0u8; LEN];
    // SAFETY: the memory is LEN bytes long, and the driver ends the text in it with a zero.
    let result = unsafe {
        sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), LEN as i32, context.cu_device())
    };
    result.result().map_err(|error| format!("the place of GPU {ordinal}: {error}"))?;
    let text = CStr::from_bytes_until_nul(&text).map_err(|error| error.to_string())?;
    Ok(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_told_once() {
        let mut seen = Seen::default();
        assert_eq!(seen.take(), None);
        seen.add(0.5);
        seen.add(1.0);
        assert_eq!(seen.take(), Some(0.75));
        assert_eq!(seen.take(), None);
    }

    #[test]
    fn a_missing_library_is_told() {
        // Without a GPU either the library or the driver is missing.
        if let Err(reason) = Utilization::watch(0) {
            assert!(!reason.is_empty());
        }
    }
}
