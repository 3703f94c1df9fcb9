//! What the end-to-end tests share.
//!
//! A test that needs several ranks is one `#[test]` function: started by `cargo test` it is the
//! parent, which re-executes its own program once per rank; started with rank variables it does the
//! work of that rank. [`ranks`] has the two halves.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test reports by panicking, a rank by printing"
)]

pub mod compare;
pub mod golden;
pub mod ranks;
pub mod samples;
pub mod semantics;
pub mod training;

pub use bonfire_tensor::lend::pretend::Memory;
pub use compare::{ExactFloats, assert_close, assert_close_to_largest};
pub use ranks::{RankOutput, as_rank, is_rank, results, run_ranks};
pub use samples::Samples;
pub use training::{Precision, Rule, Training};
