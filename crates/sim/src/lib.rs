//! Courser's simulated datacenter: unmodified endpoints, sessions, control plane and user handlers
//! run in virtual time, on a network whose losses, delays and failures follow from a seed.
//!
//! * [`World`] is the datacenter: create it from a seed and a [`fabric::Topology`], start
//!   applications on its hosts, advance time, inject faults, inspect.
//! * An application is set-up plus callbacks, the same as in production: a function from a
//!   [`courser::Nexus`] to its endpoints.
//! * [`SimDisk`] is the disk of a host: a [`courser_disk::Storage`] that loses what was not synced.
//! * [`history`] checks whether the answers of a service are linearizable, [`disturb`](mod@disturb) draws faults
//!   for such tests.
//! * [`fabric`] is the network, [`observe`] the observers, [`CpuCosts`] and [`NicConfig`] the model
//!   of a host, [`Checks`] and [`Invariant`] the checked invariants.
//!
//! ```
//! use std::time::Duration;
//! use courser::{BindError, Nexus, Rpc};
//! use courser_sim::{World, WorldConfig, fabric::Topology};
//!
//! fn server(nexus: &Nexus) -> Result<Rpc, BindError> {
//!     let mut rpc = nexus.endpoint()?;
//!     rpc.on(1, |cx, req| cx.reply(req));
//!     Ok(rpc)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut world = World::new(WorldConfig::new(42, Topology::two_hosts()))?;
//! let hosts: Vec<_> = world.hosts().collect();
//! for &host in &hosts {
//!     world.start(host, server)?;
//! }
//! let uri = world.uri(hosts[0]);
//! let rpc = world.rpc(hosts[1]);
//! let session = rpc.connect(&uri)?;
//! let mut request = rpc.alloc(5)?;
//! request.copy_from_slice(b"hello");
//! rpc.call(session, 1, request, |cx, done| {
//!     println!("{:?} at {} ns", done.result.map(|r| r.to_vec()), cx.now_ns());
//! })?;
//! world.run_for(Duration::from_millis(1));
//! assert_eq!(world.counts().executed, 1);
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod disk;
pub mod disturb;
mod event;
pub mod fabric;
pub mod history;
mod host;
pub mod observe;
mod packet;
mod rng;
mod streams;
pub mod swarm;
pub mod web_search;
mod world;

pub use disk::{DiskCounts, DiskFaults, SimDisk, Unsynced};
pub use host::costs::CpuCosts;
pub use host::machine::Numbers;
pub use host::port::{NicConfig, SimTransport};
pub use host::process::{Endpoints, SetupError};
pub use observe::{DropReason, LinkId, Place, Tap};
pub use packet::{HostId, MIN_PAYLOAD, Packet, STORED_OVERHEAD, WIRE_OVERHEAD};
pub use rng::Rng;
pub use world::{
    Checks, Counts, Invariant, PlainQueue, Sink, Violation, World, WorldConfig, WorldError, spend,
    thread_now_ns,
};

/// Compiles the programs of the page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/simulator.md")]
struct Page;

/// Runs the programs of the chapter.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/simulated-datacenter.md")]
struct Chapter;
