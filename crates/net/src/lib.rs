//! Transports: unreliable datagram I/O behind one trait, and the tests each of them must pass.

#[cfg(not(target_os = "linux"))]
compile_error!("courser-net needs Linux");

mod poll;
mod transport;
pub mod udp;

pub use transport::{Caps, Path, PathError, Transport, TransportStats};
pub use udp::{UdpConfig, UdpError, UdpTransport};
