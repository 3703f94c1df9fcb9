//! Memory of a device on its way through a collective.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::{CommError, DType, Result};

/// A point in the work of a device that has been marked, and that streams and the host can wait for.
///
/// It has been recorded already: waiting for an event that nobody has recorded yet would wait for
/// nothing.
pub trait DeviceEvent: Send + Sync {
    /// Raw handle, as the device's driver knows it (`CUevent`).
    fn raw(&self) -> u64;

    /// Whether the device has come to the mark.
    ///
    /// # Errors
    /// The device's own words, when it has failed.
    fn is_complete(&self) -> Result<bool, String>;
}

/// Where a buffer lies, and when its contents are there.
pub struct Placement {
    /// Device address of the first element.
    pub pointer: u64,
    /// The work that the contents come from; `None` when they are there already.
    pub ready: Option<Arc<dyn DeviceEvent>>,
    /// Whatever must live until nobody uses the memory any more.
    pub keep_alive: Option<Box<dyn Any + Send>>,
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placement")
            .field("pointer", &format_args!("{:#x}", self.pointer))
            .finish_non_exhaustive()
    }
}

/// Typed memory of a device, of which only an engine for that device may make use.
///
/// Where it lies may become known later than that it exists: a device that is driven by a thread
/// of its own has first to come to the work that fills it.
#[derive(Debug)]
pub struct DeviceBuffer {
    dtype: DType,
    len: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Known(Placement),
    Awaited(Receiver<Result<Placement, String>>),
}

/// Tells where a [`DeviceBuffer`] lies. Dropping it without an answer is a failure.
#[derive(Debug)]
#[must_use = "a collective waits for the placement"]
pub struct Placer(Sender<Result<Placement, String>>);

impl Placer {
    /// Tells it, or why the device has no such memory.
    pub fn place(self, placement: Result<Placement, String>) {
        // Nobody listens when the collective was given up.
        let _ = self.0.send(placement);
    }
}

impl DeviceBuffer {
    /// Describes `len` elements of `dtype` at a place.
    pub fn new(dtype: DType, len: usize, placement: Placement) -> Self {
        Self { dtype, len, place: Place::Known(placement) }
    }

    /// Describes memory whose place is told later.
    pub fn awaited(dtype: DType, len: usize) -> (Self, Placer) {
        let (sender, receiver) = bounded(1);
        (Self { dtype, len, place: Place::Awaited(receiver) }, Placer(sender))
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Tells whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns where the memory lies, once that is known.
    ///
    /// # Errors
    /// [`CommError::Device`] when the device has no such memory, or did not tell within `patience`.
    pub fn placement(&mut self, patience: Duration) -> Result<&Placement, CommError> {
        if let Place::Awaited(receiver) = &self.place {
            let told = receiver.recv_timeout(patience).map_err(|_| CommError::Device {
                what: "tell where a buffer lies".into(),
                detail: format!("no answer within {patience:?}"),
            })?;
            self.place = Place::Known(told.map_err(Self::refused)?);
        }
        match &self.place {
            Place::Known(placement) => Ok(placement),
            Place::Awaited(_) => unreachable!("the place was just learnt"),
        }
    }

    /// As [`placement`](Self::placement), without waiting; `None` while it is not known.
    pub(crate) fn try_placement(&mut self) -> Result<Option<&Placement>> {
        if let Place::Awaited(receiver) = &self.place {
            match receiver.try_recv() {
                Ok(told) => self.place = Place::Known(told.map_err(Self::refused)?),
                Err(crossbeam_channel::TryRecvError::Empty) => return Ok(None),
                Err(crossbeam_channel::TryRecvError::Disconnected) => {
                    return Err(Self::refused("the device was given up".into()));
                }
            }
        }
        match &self.place {
            Place::Known(placement) => Ok(Some(placement)),
            Place::Awaited(_) => Ok(None),
        }
    }

    /// What tells the place, while it is awaited.
    pub(crate) fn awaited_place(&self) -> Option<&Receiver<Result<Placement, String>>> {
        match &self.place {
            Place::Awaited(receiver) => Some(receiver),
            Place::Known(_) => None,
        }
    }

    /// The same memory, whose contents are there.
    pub(crate) fn settled(mut self) -> Self {
        if let Place::Known(placement) = &mut self.place {
            placement.ready = None;
        }
        self
    }

    fn refused(reason: String) -> CommError {
        CommError::Device { what: "fill a buffer".into(), detail: reason }
    }
}
