//! Tests of hosts in network namespaces. They need root; without it they are skipped and print the reason.

mod addresses;
mod ecn;
#[path = "common/mark.rs"]
mod mark;
mod written;
