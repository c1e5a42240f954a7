//! The program, as its users run it: nodes as processes over sockets.

#[path = "program/basics.rs"]
mod basics;
#[path = "program/disk.rs"]
mod disk;
#[path = "program/drill.rs"]
mod drill;
#[path = "program/processes.rs"]
mod processes;
