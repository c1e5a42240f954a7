//! Whole worlds: real endpoints on simulated hosts. One program, because each program of its own
//! compiles the library for the simulated transport once more; `mutants.rs` sets the process's panic hook.

mod chats;
mod contexts;
mod disk;
mod futures;
mod go_back_zero;
mod history;
mod host_queue;
mod host_waits;
mod memory;
mod one_impl;
mod packing;
mod races;
mod restart;
mod retries;
mod services;
mod swarm;
mod typed;
mod world;
