//! The `courser` program.

// The benchmark commands are the harness's only callers.
#[allow(dead_code)]
mod harness;

fn main() {}
