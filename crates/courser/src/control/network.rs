//! The network below the control thread: TCP ([`super::tcp`]), or the streams of a simulated
//! machine ([`super::virtual_time`]). The driver above is the same.
//!
//! Readiness is edge-triggered: a reader that stops before `WouldBlock` gets no further event.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;

/// What has become ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ready {
    /// A connection may wait to be accepted.
    Listener,
    /// The connection of this number can be read, or has failed.
    Conn { n: u64, writable: bool },
}

/// A network with one listener.
pub(super) trait Network {
    type Stream: Stream;

    /// The next connection that waits, and who it is; `WouldBlock` when there is none.
    fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)>;

    /// Begins a connection.
    fn connect(&mut self, to: SocketAddr) -> io::Result<Self::Stream>;

    /// Announces readiness of a stream from now on, also what is ready already.
    fn register(&mut self, stream: &mut Self::Stream, n: u64) -> io::Result<()>;

    /// Announces nothing more of a stream that is about to be dropped.
    fn deregister(&mut self, stream: &mut Self::Stream);

    /// Looks a name up. `None`: the answer to `dial` comes as [`super::Event::Resolved`].
    fn resolve(&mut self, dial: u64, host: &str, port: u16) -> io::Result<Option<Vec<SocketAddr>>>;
}

/// A reliable stream of bytes; nothing blocks. Dropping it closes it.
pub(super) trait Stream: Read + Write + fmt::Debug {
    /// Whether the connection stands; `None`: not yet.
    fn connected(&mut self) -> io::Result<Option<()>>;

    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Sets what a connection that stands shall have.
    fn prepare(&mut self) -> io::Result<()>;

    /// Dropping it resets the connection, so that nothing is kept for a peer that does not read.
    fn abort_on_close(&self);
}
