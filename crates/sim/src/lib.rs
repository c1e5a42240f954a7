//! Courser's simulated datacenter: endpoints, sessions, control plane and the user's own handlers,
//! unmodified, in virtual time, on a network that loses, delays and falls apart as a seed says.

#![forbid(unsafe_code)]

mod event;
pub mod fabric;
pub mod observe;
mod packet;
mod rng;

pub use observe::{DropReason, LinkId, Place, Tap};
pub use packet::{HostId, MIN_PAYLOAD, Packet, STORED_OVERHEAD, WIRE_OVERHEAD};
pub use rng::Rng;
