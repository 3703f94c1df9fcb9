//! Streams and events of a fake device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Sender, unbounded};

use crate::device_buffer::DeviceEvent;
use crate::sync::lock;

type Item = Box<dyn FnOnce() + Send>;

/// Work that runs behind the host, in order.
pub(super) struct Stream {
    items: Option<Sender<Item>>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let (items, received) = unbounded::<Item>();
        let run = move || received.iter().for_each(|item| item());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(|error| error.to_string())?;
        Ok(Self { items: Some(items), thread: Some(thread) })
    }

    pub(super) fn push(&self, item: impl FnOnce() + Send + 'static) {
        if let Some(items) = &self.items {
            // The thread lives as long as the stream.
            let _ = items.send(Box::new(item));
        }
    }

    pub(super) fn record(&self) -> Arc<Event> {
        let event = Arc::new(Event::new());
        let mark = event.clone();
        self.push(move || mark.set());
        event
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.items = None;
        // An item may hold the last handle of its own stream.
        if let Some(thread) =
            self.thread.take_if(|t| t.thread().id() != std::thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

pub(super) struct Event {
    raw: u64,
    at: Mutex<Option<Instant>>,
    set: Condvar,
}

impl Event {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let raw = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { raw, at: Mutex::new(None), set: Condvar::new() }
    }

    fn set(&self) {
        *lock(&self.at) = Some(Instant::now());
        self.set.notify_all();
    }

    pub(super) fn at(&self) -> Option<Instant> {
        *lock(&self.at)
    }

    pub(super) fn wait(&self) {
        let mut at = lock(&self.at);
        while at.is_none() {
            at = self.set.wait(at).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl DeviceEvent for Event {
    fn raw(&self) -> u64 {
        self.raw
    }

    fn is_complete(&self) -> Result<bool, String> {
        Ok(self.at().is_some())
    }
}
