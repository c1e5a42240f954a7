//! Tests that run the program, in one program of tests: each further one would be linked, too.

mod bench;
mod bind;
mod common;
mod faults;
mod network;
mod screens;
mod stat;
mod words;
