//! Figures of classifiers that batches and ranks add up to exactly; knows neither Burn nor ranks.
//!
//! - [`ConfusionMatrix`]: how often which class was taken for which; precision, recall and F1;
//! - [`TopK`]: how often the target is among the k highest scores;
//! - [`Auroc`]: the exact area under the ROC curve, of two classes or one-vs-rest;
//! - [`Figures`]: those of them that a run asks for, of which a rank without samples has none.
//!
//! Each is a sum over samples: [`Scored`] batches update it, `merge` adds that of another rank, and
//! `to_bytes` and `from_bytes` carry it there. A mean of means would weigh a short batch as much as a
//! full one, and the area under a curve has no mean at all. Values are made of whole numbers only when
//! they are asked for, so that they depend neither on the order of batches nor on the number of ranks,
//! to the last bit.
//!
//! ```
//! use bonfire_metrics::{Figure, Figures, Scored};
//!
//! # fn main() -> Result<(), bonfire_metrics::MetricError> {
//! let wanted = [Figure::Recall, Figure::Auroc];
//! let mut own = Figures::new(&wanted);
//! own.update(&Scored::new(&[2.0, -1.0, 0.5, 1.5], &[0, 1], 2)?)?;
//!
//! // What an all-gather returns; the second rank had no samples.
//! let gathered = [own.to_bytes(), Figures::new(&wanted).to_bytes()];
//! let mut total = Figures::new(&wanted);
//! for part in &gathered {
//!     total.merge_bytes(part)?;
//! }
//! assert_eq!(total.values(), [("recall", 1.0), ("auroc", 1.0)]);
//! # Ok(())
//! # }
//! ```

mod auroc;
mod average;
mod bytes;
mod confusion;
mod error;
mod figure;
mod figures;
mod parts;
mod scored;
mod top_k;

pub use auroc::Auroc;
pub use average::{Average, ClassFigures};
pub use confusion::ConfusionMatrix;
pub use error::MetricError;
pub use figure::Figure;
pub use figures::Figures;
pub use scored::Scored;
pub use top_k::TopK;
