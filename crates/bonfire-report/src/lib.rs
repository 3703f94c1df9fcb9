//! What a run tells people: charts, its report, event files, traces and what they mean. Knows neither Burn
//! nor ranks.

pub mod chart;
pub mod history;
pub mod html;
pub mod number;
pub mod tensorboard;
pub mod trace;
pub mod verdict;
mod xml;
