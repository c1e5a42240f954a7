//! What the fuzz targets do with their input, apart from libFuzzer: the targets are one line each,
//! and the generator of the seed corpus builds on the same code.
//!
//! Each `run` panics when something that must hold does not; libFuzzer's sanitizers see the rest.

#![allow(unreachable_pub)] // modules of the tests are used here as they stand there

pub mod control;
pub mod control_live;
pub mod endpoint;
pub mod frame;
pub mod program;
pub mod seeds;
#[cfg(fuzzing)]
pub mod shm;
pub mod text;

/// The world of the protocol's own tests: endpoints joined by a link in memory.
#[allow(unused_imports)] // a part of it
#[path = "../../crates/proto/tests/protocol/support/mod.rs"]
mod support;
