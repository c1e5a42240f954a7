//! The program, as its users run it: nodes as processes over sockets.

/// The example of the README, whose calls a test runs.
#[allow(dead_code, reason = "its own main function is not called")]
#[path = "../examples/client.rs"]
mod example;

#[path = "program/basics.rs"]
mod basics;
#[path = "program/disk.rs"]
mod disk;
#[path = "program/drill.rs"]
mod drill;
#[path = "program/processes.rs"]
mod processes;
