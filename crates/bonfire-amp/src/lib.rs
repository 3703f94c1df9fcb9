//! Mixed precision and gradient clipping.
//!
//! - [`MixedPrecision`]: in which 16-bit type forward and backward passes run, and which parameters
//!   stay as they are;
//! - [`GradScaler`]: keeps the gradients of fp16 away from zero, and steps with an overflow away
//!   from the parameters;
//! - [`Clip`]: bounds gradients by their global norm or element by element;
//! - [`GradientStats`]: norm and overflow of flat gradients, found in one pass.
//!
//! Nothing here knows a group of ranks: the data-parallel layer casts, combines the figures of all
//! ranks, and skips steps.

mod clip;
mod error;
mod mixed_precision;
mod scaler;
mod stats;
mod unsupported;

pub use clip::{Clip, NormType, scale_and_limit};
pub use error::AmpError;
pub use mixed_precision::{HalfType, MixedPrecision};
pub use scaler::{GradScaler, GradScalerConfig};
pub use stats::GradientStats;
