//! A device that is none, for tests of what is done on devices.

use crate::TensorError;
use crate::host::{flat_from_host, to_host};
use bonfire_comm::fake::{self, FakeDevice};
use bonfire_comm::local;
use bonfire_comm::{Buffer, CommError, HostBuffer, Operation, ProcessGroup, Work};
use burn::tensor::{Device, Tensor};
use crossbeam_channel::Receiver;
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static APART: Cell<bool> = Cell::new(std::env::var_os(VARIABLE).is_some());
}

/// Set, it makes the tensors of all threads count as a device's: for a run of tests that were written
/// for the CPU.
pub const VARIABLE: &str = "BONFIRE_TEST_APART";

/// Makes the tensors of this thread count as a device's, wherever they lie.
pub fn set_apart(apart: bool) {
    APART.set(apart);
}

/// Whether they do.
pub fn is_apart() -> bool {
    APART.get()
}

pub(super) struct Lent {
    work: Work,
    pointer: u64,
    fake: FakeDevice,
    device: Device,
}

pub(super) fn start(
    group: &ProcessGroup,
    operation: Operation,
    flat: Tensor<1>,
) -> Result<Lent, TensorError> {
    let fake = FakeDevice::current().ok_or_else(|| CommError::Device {
        what: "be found".into(),
        detail: "this thread has no fake device".into(),
    })?;
    let device = flat.device();
    let mut buffer = fake.produce(to_host(flat)?, Duration::ZERO);
    let pointer = buffer.placement(Duration::ZERO)?.pointer;
    let work = group.start(operation, Buffer::Device(buffer))?;
    Ok(Lent { work, pointer, fake, device })
}

impl Lent {
    pub(super) fn is_done(&self) -> bool {
        self.work.is_done()
    }

    pub(super) fn finish(self) -> Result<Tensor<1>, TensorError> {
        let read = self.fake.consume(self.pointer, self.work.fence()?);
        let values = match received(&read) {
            Ok(values) => values,
            // The memory of an operation that was given up is gone.
            Err(error) => return Err(self.work.wait().err().map_or(error, TensorError::Comm)),
        };
        Ok(flat_from_host(values, &self.device))
    }
}

fn received(read: &Receiver<bonfire_comm::Result<HostBuffer>>) -> Result<HostBuffer, TensorError> {
    let lost = |_| CommError::Internal { detail: "the fake device has ended".into() };
    Ok(read.recv().map_err(lost)??)
}

/// Where the tensors of ranks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// In host memory.
    Host,
    /// On devices that an engine connects.
    Device,
    /// On devices, while the engine knows host memory only.
    Staged,
}

impl Memory {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Host, Self::Device, Self::Staged];

    /// Runs `f` in a thread per rank.
    ///
    /// # Panics
    /// As the first rank that did.
    pub fn spawn<T: Send>(
        self,
        world: usize,
        f: impl Fn(ProcessGroup) -> T + Send + Sync,
    ) -> Vec<T> {
        match self {
            Self::Host => local::spawn(world, f),
            Self::Device => fake::spawn(world, |group, device| {
                set_apart(true);
                let result = f(group);
                assert_eq!(device.faults(), Vec::<String>::new());
                result
            }),
            Self::Staged => local::spawn(world, |group| {
                set_apart(true);
                f(group)
            }),
        }
    }
}
