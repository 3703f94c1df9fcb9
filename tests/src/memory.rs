//! Ranks that are threads, with tensors here or there.

use bonfire_comm::{ProcessGroup, fake, local};
use bonfire_tensor::lend::pretend;

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
                pretend::set_apart(true);
                let result = f(group);
                assert_eq!(device.faults(), Vec::<String>::new());
                result
            }),
            Self::Staged => local::spawn(world, |group| {
                pretend::set_apart(true);
                f(group)
            }),
        }
    }
}
