//! A replicated key-value store: Raft over Courser's typed services.
//!
//! * [`command`], [`store`]: the state machine: commands, sessions of clients, snapshots.
//! * [`wire`]: the bounded decoder of Raft messages. [`log`](mod@log): the log in memory.
//! * [`core`](mod@core): a node without I/O.
//! * [`planted`]: bugs that the tests have to find.

#![forbid(unsafe_code)]

pub mod command;
pub mod core;
pub mod log;
pub mod planted;
pub mod store;
pub mod wire;
