//! What it takes to use an NVIDIA GPU, without linking any of it.
//!
//! The driver, the run-time compiler and NCCL are opened when they are used. What is missing is an
//! error that says what to install ([`check`]), before a library that is not there ends the process.

mod event;
mod pinned;
mod requirements;
mod search;
mod utilization;

pub use event::Event;
pub use pinned::Pinned;
pub(crate) use requirements::context;
pub use requirements::{check, count_devices, prepare};
pub(crate) use search::Places;
pub use utilization::Utilization;
