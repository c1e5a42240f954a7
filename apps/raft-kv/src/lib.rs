//! A replicated key-value store: Raft over Courser's typed services.
//!

#![forbid(unsafe_code)]

pub mod command;
pub mod wire;
