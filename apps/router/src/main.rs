//! The `router` program.

fn main() {}
