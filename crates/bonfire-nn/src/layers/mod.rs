//! Layers with the configuration, the fields and the records of Burn's own, which tell what they do to
//! [`watch_layers`](crate::watch_layers).

pub mod conv;
mod linear;

pub use linear::{Linear, LinearConfig};
