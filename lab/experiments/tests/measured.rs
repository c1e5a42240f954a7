//! Tests that run the program on this machine's sockets and cores, in one program of tests.

mod bench;
#[path = "../../../crates/cli/tests/common/mod.rs"]
mod common;
mod screens;
