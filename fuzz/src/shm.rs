//! Shared memory with an adversarial peer: a ring with both of its ends, and the first exchange
//! with a live endpoint. The code is in the transport, since both need its internals.

pub use courser_net::shm::fuzz::{meeting, ring};
