//! The fuzz targets without libFuzzer: the binaries are one line each, and the generator of the
//! seed corpus uses the same code.
//!
//! Each `run` panics when a condition is violated; libFuzzer's sanitizers detect the rest.

#![allow(unreachable_pub)] // modules of the tests are used here as they stand there

pub mod codecs;
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
