//! Event files of TensorBoard, written without TensorFlow.
//!
//! An event file is a row of records, each a protocol buffer `Event` between two checksums. Of the
//! messages only the few fields that TensorBoard reads are written; `message.rs` knows how fields
//! are laid out, `event.rs` which there are, `record.rs` what lies around them.
//!
//! ```
//! use bonfire_report::tensorboard::{EventWriter, Histogram};
//! use std::time::SystemTime;
//!
//! let folder = tempfile::tempdir()?;
//! let mut events = EventWriter::create(folder.path(), None)?;
//! let now = SystemTime::now();
//! events.scalar("loss/train", 10, now, 0.25)?;
//! events.histogram("weights/conv1", 10, now, &Histogram::of([0.5, -1.0]))?;
//! events.text("config", 0, now, "    lr = 0.1")?;
//! events.flush()?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod event;
mod histogram;
mod message;
mod record;
mod writer;

pub use histogram::Histogram;
pub use writer::EventWriter;
