//! What can be written in a configuration, generated from its types.

mod reference;
mod schema;
#[cfg(test)]
mod tests;

pub use reference::reference;
pub use schema::{ModelKeys, json_schema};
