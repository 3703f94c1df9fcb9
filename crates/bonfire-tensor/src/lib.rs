//! The only place where Burn tensors meet a wire.
//!
//! - [`hook`]: identity operations behind every parameter whose backward step hands the gradient
//!   out *while* the backward pass goes on;
//! - [`autodiff`]: which tensors may be used together;
//! - [`cast`]: in which element type a forward pass sees the parameters;
//! - [`trace`]: the order in which a forward pass uses the parameters;
//! - [`host`]: tensors as flat host memory and back, without copies where the memory allows it;
//! - [`lend`]: collectives on tensors that lie on a device; [`later`]: figures read without waiting for
//!   one;
//! - [`parameters`]: what a module is made of, by module path;
//! - [`state`]: the [`Stateful`](state::Stateful) trait by which everything that a checkpoint holds
//!   is saved and restored;
//! - [`batch_norm`]: batch normalisation over the ranks of a group;
//! - [`checkpointing`]: activations that are computed again in the backward pass;
//! - [`collective`]: collectives on tensors, among them a differentiable all-reduce.

pub mod autodiff;
pub mod batch_norm;
pub mod cast;
pub mod checkpointing;
pub mod collective;
mod error;
mod extension;
pub mod hook;
pub mod host;
#[cfg_attr(feature = "cuda", allow(unsafe_code, reason = "copies on Burn's stream"))]
pub mod later;
#[cfg_attr(feature = "cuda", allow(unsafe_code, reason = "streams of Burn's device thread"))]
pub mod lend;
pub mod parameters;
pub mod state;
pub mod trace;

pub use error::TensorError;
