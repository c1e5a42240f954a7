//! The `raft-kv` program.

#![forbid(unsafe_code)]

fn main() {}
