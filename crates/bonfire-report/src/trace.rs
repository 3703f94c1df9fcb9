//! What every rank did when, in the trace-event format that Perfetto and Chrome show.
//!
//! Each rank keeps [`Span`]s, in nanoseconds of a clock that all ranks share; one of them gathers
//! the [`RankTrace`]s and [writes](write()) the file. Ranks are processes there, lanes are threads.
//!
//! ```
//! use bonfire_report::trace::{self, Lane, RankTrace, Span};
//!
//! let forward = Span::new(Lane::Step, "forward", 1_000, 250).with_step(1);
//! let mut file = Vec::new();
//! trace::write(&mut file, &[RankTrace { rank: 0, spans: vec![forward] }])?;
//! let json: serde_json::Value = serde_json::from_slice(&file)?;
//! assert_eq!(trace::validate(&json), Ok(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod span;
mod tracks;
mod validate;
mod write;

pub use span::{Lane, RankTrace, Span, totals};
pub use validate::validate;
pub use write::write;
