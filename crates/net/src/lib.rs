//! Transports: unreliable datagram I/O behind one trait, and the tests that each of them must pass.
//!
//! * [`udp`]: the kernel's UDP. * [`mem`]: endpoints of one process, for tests and counting.
//! * [`shm`]: shared memory between the processes of a machine.
//! * [`any`]: the registry, which opens a transport by its address. * [`options`]: typed options.
//! * [`delayed_completion`], [`fault`]: middleware for tests; [`Middleware`] is the trait for your
//!   own.
//! * [`conformance`]: the requirements for every transport, as tests.
//!
//! # Writing a transport
//!
//! A transport can live in any crate; `examples/unix-datagram` in the repository is a complete one
//! in less than 300 lines.
//!
//! 1. **Implement [`Transport`].** Frames may be lost, duplicated and reordered, never invented.
//!    [`PathTable`] numbers destinations, [`wait_readable`] sleeps on a descriptor. Received frames
//!    are lent from memory of the transport until its next burst. A full queue drops frames and
//!    counts them; nothing blocks but [`Transport::wait`] and [`Transport::tx_flush`].
//! 2. **State the truth in [`Caps`].** The protocol sizes its credits by `rx_queue_frames`: a
//!    number that is too large causes loss, one that is too small costs throughput.
//! 3. **Define the options**: a struct that implements [`TransportOptions`]. Every named option can
//!    be set in an address; the error for an unknown one lists those of the transport.
//!    [`CommonOptions`] has the settings that all transports share.
//!    [`TransportOptions::control`] selects TCP or Unix sockets for control connections.
//! 4. **Register the scheme** with [`any::register`]. The function that it takes opens an endpoint.
//!    It returns [`OpenError::InUse`] for a port that is taken, so that a nexus on port 0 tries
//!    another one.
//! 5. **Run [`conformance::run`]** against a pair of endpoints, alone and inside
//!    [`DelayedCompletion`].
//!
//! A program then selects the transport by address: `Nexus::bind("unix://127.0.0.1:0")`. The host
//! of a nexus is always an IP address or `localhost`, because it is the address of its control
//! connections; the transport receives it, with the port of the endpoint, as [`BindSpec::uri`].

#[cfg(not(target_os = "linux"))]
compile_error!("courser-net needs Linux");

pub mod any;
pub mod conformance;
pub mod delayed_completion;
mod error;
pub mod fault;
mod fork;
pub mod mem;
mod middleware;
pub mod options;
mod paths;
mod poll;
pub mod shm;
mod transport;
pub mod udp;
mod uri;

pub use any::{AnyTransport, BindSpec};
pub use delayed_completion::{DelayedCompletion, DelayedCompletionConfig};
pub use error::OpenError;
pub use fault::{Fault, FaultConfig, FaultCounts, FaultPlan, FaultSyntax, FaultTransport};
pub use fork::ThisProcess;
pub use mem::{MemConfig, MemError, MemNetwork, MemOptions, MemTransport};
pub use middleware::Middleware;
pub use options::{CommonOptions, ControlSockets, OptionSet, TransportOptions};
pub use paths::PathTable;
pub use poll::wait_readable;
pub use shm::{ShmConfig, ShmError, ShmOptions, ShmTransport, Trust};
pub use transport::{Caps, Path, PathError, Transport, TransportStats, is_exhausted};
pub use udp::{Offload, UdpConfig, UdpError, UdpOptions, UdpTransport};
pub use uri::{Host, Uri, UriError, ZoneError, host_of};
