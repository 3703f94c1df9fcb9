//! The rendezvous store: a small key-value map over TCP, and the presence of ranks.

mod acceptor;
mod client;
mod protocol;
mod server;

pub(crate) use acceptor::Acceptor;
pub use client::Store;
pub(crate) use client::{ConnectError, Endpoint, RETRY};
#[cfg(any(test, feature = "testing"))]
pub(crate) use protocol::{Answer, Request};
pub(crate) use protocol::{Note, Scope, decode_progress};
pub use server::{StoreOptions, StoreServer};

#[cfg(test)]
mod tests;
