//! A device without a device, for tests: memory that only the device knows, streams that run
//! behind the host, and a library that moves bytes between such devices.
//!
//! Pointers are numbers, so that whoever takes one for host memory crashes. Memory that is given
//! back is gone: whoever uses it thereafter is found out. A device runs one collective at a time,
//! in the order of their launches, so that two ranks that launch in different order wait for each
//! other for ever.

mod device;
mod library;
mod stream;
#[cfg(test)]
mod tests;

pub use device::FakeDevice;

use std::sync::Arc;
use std::time::Duration;

use self::library::FakeLibrary;
use crate::{ProcessGroup, device::open, local};

/// Deadline of collectives when none was chosen.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `f` in a thread per rank, each with a group and a device of its own.
///
/// # Panics
/// As [`local::spawn`].
pub fn spawn<T: Send>(
    world_size: usize,
    f: impl Fn(ProcessGroup, FakeDevice) -> T + Send + Sync,
) -> Vec<T> {
    spawn_with_timeout(world_size, TIMEOUT, f)
}

/// As [`spawn`], with another deadline for collectives.
///
/// # Panics
/// As [`local::spawn`].
pub fn spawn_with_timeout<T: Send>(
    world_size: usize,
    timeout: Duration,
    f: impl Fn(ProcessGroup, FakeDevice) -> T + Send + Sync,
) -> Vec<T> {
    let wrap = |engine| {
        let device = FakeDevice::new();
        let group = open(Arc::new(engine), FakeLibrary::new(device.clone()), timeout)?;
        device.enter();
        Ok(group)
    };
    local::spawn_over(world_size, timeout, wrap, |group| {
        f(group, FakeDevice::current().unwrap_or_default())
    })
}
