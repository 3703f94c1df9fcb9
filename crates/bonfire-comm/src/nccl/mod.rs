//! Engine `nccl`: ranks with a GPU each, over NVIDIA's library.
//!
//! The engine itself is [`device`](crate::device); here is the library: `sys` opens it and knows
//! its functions, `library` makes of them what the engine needs.

mod library;
mod sys;

use std::sync::Arc;

use self::library::Nccl;
use self::sys::Functions;
use crate::host_engine::HostEngine;
use crate::{Engine, ProcessGroup, Result, device};

/// Makes the world over GPUs: this rank's is `ordinal`.
///
/// # Collective
/// Called by all ranks of `world`.
pub(crate) fn open(
    world: HostEngine,
    ordinal: usize,
    timeout: std::time::Duration,
) -> Result<ProcessGroup> {
    let world = Arc::new(world);
    // The others are connected already, and wait for this rank.
    let tell = |error: &crate::CommError| world.abort(&error.to_string());
    let library = Nccl::new(ordinal).inspect_err(tell)?;
    device::open(world.clone(), library, timeout)
}

/// Returns the version of NCCL: major, minor, patch.
///
/// # Errors
/// [`CommError::EngineUnavailable`](crate::CommError::EngineUnavailable) without the library.
pub fn version() -> Result<(u32, u32, u32)> {
    let number = Functions::get()?.version();
    Ok((number / 10_000, number % 10_000 / 100, number % 100))
}

/// Meets the other ranks as [`init_process_group`](crate::init_process_group) does, and returns the id
/// that rank 0's NCCL makes for the world: the engine's own way to its first communicator, as far as
/// it needs no GPU.
///
/// # Collective
/// Called by all ranks.
///
/// # Errors
/// The failures of the rendezvous and of any collective.
#[cfg(any(test, feature = "testing"))]
pub fn exchange_id(env: &crate::RankEnv, options: &crate::InitOptions) -> Result<Vec<u8>> {
    use crate::device::Library;
    let world = crate::init::host_world(env, options, crate::EngineKind::Nccl)?;
    device::agree_on_id(Nccl::unique_id, &world, "world", options.timeout)
}
