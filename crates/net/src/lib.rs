//! Transports: unreliable datagram I/O behind one trait, and the tests each of them must pass.

#[cfg(not(target_os = "linux"))]
compile_error!("courser-net needs Linux");

mod any;
pub mod mem;
mod poll;
mod transport;
pub mod udp;

pub use any::{AnyTransport, BindSpec, Factory, OpenError, open, register};
pub use mem::{MemConfig, MemError, MemNetwork, MemTransport};
pub use transport::{Caps, Path, PathError, Transport, TransportStats};
pub use udp::{UdpConfig, UdpError, UdpTransport};
