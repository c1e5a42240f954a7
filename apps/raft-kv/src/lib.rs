//! A replicated key-value store: Raft over Courser's typed services.
//!
//! * [`command`], [`store`]: the state machine: commands, sessions of clients, snapshots.
//! * [`wire`]: the bounded decoder of Raft messages. [`log`](mod@log): the log in memory.
//! * [`journal`]: log and snapshots on disk.
//! * [`core`](mod@core): a node without I/O.
//! * [`api`]: the services. [`node`]: a node at an endpoint. [`signal`]: wake-ups between its tasks.
//! * [`client`]: the client library.
//! * [`planted`]: bugs that the tests have to find.

#![forbid(unsafe_code)]

pub mod address;
pub mod api;
pub mod client;
pub mod command;
pub mod core;
pub mod journal;
pub mod log;
pub mod node;
pub mod planted;
pub mod signal;
pub mod store;
pub mod wire;
