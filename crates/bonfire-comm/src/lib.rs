//! Ranks, process groups, the rendezvous store and collectives over host slices and device
//! buffers. This crate knows nothing of Burn.
//!
//! A [`ProcessGroup`] is a set of ranks and one [`Engine`] that moves bytes between them:
//!
//! - `single`: one rank, no sockets ([`ProcessGroup::single`]);
//! - `local`: a thread per rank in one process ([`local::spawn`]);
//! - `host`: a process per rank over TCP ([`init_process_group`]);
//! - `mpi`: processes that `mpirun` has started, over an MPI library (`init_mpi`, cargo feature
//!   `mpi`);
//! - `nccl`: processes with a GPU each, over NVIDIA's library (cargo feature `cuda`).
//!
//! Every collective has a sequence number, a fingerprint that the receiver checks, and a
//! deadline. The first failure of any rank is latched and pushed to all of them, so that a
//! collective never hangs and every rank's error names the culprit. `README.md` of this crate
//! describes the wire protocol and the failure state machine.
//!
//! ```
//! use bonfire_comm::{ReduceOp, local};
//!
//! let sums = local::spawn(3, |group| {
//!     let mut data = vec![group.rank() as f32; 4];
//!     group.all_reduce(&mut data, ReduceOp::Sum).map(|()| data)
//! });
//! for sum in sums {
//!     assert_eq!(sum?, vec![3.0; 4]);
//! }
//! # Ok::<(), bonfire_comm::CommError>(())
//! ```

mod algorithm;
mod buffer;
mod collectives;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg_attr(
    not(any(test, feature = "cuda", feature = "testing")),
    allow(dead_code, unused_imports, reason = "needs a library")
)]
mod device;
mod device_buffer;
mod dtype;
mod engine;
mod env;
mod error;
mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod flight;
mod flow;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod group;
mod header;
mod host_engine;
mod init;
mod late;
mod links;
pub mod local;
mod membership;
mod mesh;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "calls into NCCL and the driver")]
pub mod nccl;
mod presence;
mod range;
mod reduce;
mod shm;
#[allow(unsafe_code, reason = "code for a processor that is asked for first")]
mod simd;
mod store;
mod sync;
#[cfg(test)]
mod testing;
mod token;
mod topology;
mod tuning;
mod wire;
mod work;

pub use algorithm::{Algorithm, EngineKind, Transport};
pub use buffer::{Buffer, HostBuffer};
pub use device::Fence;
pub use device_buffer::{DeviceBuffer, DeviceEvent, Placement, Placer};
pub use dtype::{DType, Element};
pub use engine::{
    Call, Capabilities, Engine, HostView, MemoryKind, Operation, OperationKind, SubGroup, Transfer,
};
pub use env::RankEnv;
pub use error::CommError;
pub use group::{PeerOp, ProcessGroup};
pub use init::{InitOptions, init_process_group, init_single};
#[cfg(feature = "mpi")]
pub use mpi::init_mpi;
pub use range::{Range, range, range_of};
pub use reduce::ReduceOp;
pub use store::{Store, StoreOptions, StoreServer};
pub use work::{Work, WorkHandle};

/// The result of this crate's fallible calls.
pub type Result<T, E = CommError> = std::result::Result<T, E>;
