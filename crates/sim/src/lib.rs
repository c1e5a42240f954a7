//! Courser's simulated datacenter: endpoints, sessions, control plane and the user's own handlers,
//! unmodified, in virtual time, on a network that loses, delays and falls apart as a seed says.

#![forbid(unsafe_code)]

mod event;
pub mod fabric;
mod host;
pub mod observe;
mod packet;
mod rng;
pub mod scenario;
mod streams;
mod world;

pub use host::costs::CpuCosts;
pub use host::port::{NicConfig, SimTransport};
pub use host::process::{Endpoints, SetupError};
pub use observe::{DropReason, LinkId, Place, Tap};
pub use packet::{HostId, MIN_PAYLOAD, Packet, STORED_OVERHEAD, WIRE_OVERHEAD};
pub use rng::Rng;
pub use world::{Checks, Counts, Invariant, Violation, World, WorldConfig, WorldError, spend};
