//! The library's promises, through its public face and over real transports: one program, because
//! each program of its own compiles the library for each transport once more.
//!
//! Tests that need a process of their own are programs of their own: `allocations.rs` counts
//! allocations, `silent_peers.rs` measures resident memory, and `drop_order.rs` is checked for leaks.
//! `error_texts.rs` is no part of the package.

#[path = "../common/mod.rs"]
mod common;

mod awaiting;
mod calls;
mod client;
mod connecting;
mod deadlines;
mod detection;
mod driving;
mod examples;
mod exhausted;
mod failures;
mod false_servers;
mod greedy;
mod hostile;
#[cfg(feature = "tokio")]
mod in_place;
mod messages;
mod panics;
mod paths;
mod ready;
mod registered;
mod server;
mod settings;
mod shares;
mod shm;
mod shutdown;
mod translation;
mod transports;
mod turns;
mod verdicts;
mod virtual_time;
mod workers;
