//! Typed services over a network within a thread.

#![allow(unreachable_pub)]

mod calls;
mod kv;
mod world;
