//! An engine for the memory of devices, over any library that moves bytes between them.
//!
//! ```text
//!  caller's threads          device thread (the only one that calls the library)
//!  ----------------          ---------------------------------------------------
//!  DeviceEngine -- jobs ---> Lane: queue, then in flight on a stream of its own  } one per
//!  DeviceEngine -- jobs ---> Lane                                                } group
//!                            Conductor: which lane is next, the same on all ranks
//! ```
//!
//! - `library`: what a library has to be able to do; [`nccl`](crate::nccl) and the fake one of the
//!   tests are such;
//! - `engine`: what a process group calls; `driver`: the device thread; `lane`: the operations of
//!   a group; `conductor`: the order of operations over the ranks.
//!
//! Every group has a companion of engine `host` over the same ranks. It carries what lies in host
//! memory, introduces the ranks to each other, and knows who is still there: a rank that dies ends
//! the operations of the others on their devices, too.
//!
//! The host never waits for a device here. The work that fills a buffer is marked by an event on
//! the caller's stream (`ready`), the lane's stream waits for it, the library works in place, a
//! second event (`done`) is handed back through a [`Fence`](crate::Fence), and whatever uses the
//! buffer waits for that. The buffer lives until `done` has come.

mod conductor;
mod driver;
mod engine;
mod groups;
mod lane;
mod library;
mod shared;

pub use engine::Fence;
#[cfg(any(test, feature = "testing"))]
#[allow(unused_imports, reason = "each library has its own way")]
pub(crate) use engine::agree_on_id;
pub(crate) use engine::open;
pub(crate) use library::{Library, Memory, Progress, Seat};
