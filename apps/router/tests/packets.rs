//! The checks of packets from outside: malformed packets of a capture, and mutated packets, with
//! etherparse as the second opinion.

#[path = "packets/build.rs"]
mod build;
#[path = "packets/generate.rs"]
mod generate;
#[path = "packets/malformed.rs"]
mod malformed;
#[path = "packets/mutate.rs"]
mod mutate;
