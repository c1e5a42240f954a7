//! Transports: unreliable datagram I/O behind one trait, and the tests each of them must pass.
//!
//! * [`udp`]: the kernel's UDP. * [`mem`]: endpoints of one process, for tests and counting.
//! * [`shm`]: memory that the endpoints of a machine share.
//! * [`any`]: the registry, which opens a transport by its address. * [`options`]: typed options.
//! * [`hold`], [`fault`]: middleware around any transport, for tests.
//! * [`conformance`]: what every transport must do.

#[cfg(not(target_os = "linux"))]
compile_error!("courser-net needs Linux");

pub mod any;
pub mod conformance;
mod error;
pub mod fault;
pub mod hold;
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
pub use error::OpenError;
pub use fault::{Fault, FaultConfig, FaultCounts, FaultPlan, FaultSyntax, FaultTransport};
pub use hold::{HoldConfig, HoldTransport};
pub use mem::{MemConfig, MemError, MemNetwork, MemOptions, MemTransport};
pub use middleware::Middleware;
pub use options::{CommonOptions, OptionSet, TransportOptions};
pub use paths::PathTable;
pub use shm::{ShmConfig, ShmError, ShmOptions, ShmTransport};
pub use transport::{Caps, Path, PathError, Transport, TransportStats};
pub use udp::{Offload, UdpConfig, UdpError, UdpOptions, UdpTransport};
pub use uri::{Uri, UriError};
