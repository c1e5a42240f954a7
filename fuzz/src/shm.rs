//! Shared memory whose other side is an enemy: a ring with both of its ends, and the first meeting
//! with a live endpoint. Both need the inside of the transport, so they are there.

pub use courser::parts::net::shm::fuzz::{meeting, ring};
