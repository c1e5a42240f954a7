//! The network below the control thread: sockets ([`super::sockets`]), or the streams of a simulated
//! machine ([`super::virtual_time`]). The driver is the same for both.
//!
//! Readiness is edge-triggered: a reader that stops before `WouldBlock` gets no further event.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;

use courser_proto::HostIdentity;

/// A readiness event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ready {
    /// Connections may be ready to accept.
    Listener,
    /// Connection `n` is readable or has failed.
    Conn { n: u64, writable: bool },
}

/// A network with one listener.
pub(super) trait Network {
    type Stream: Stream;

    /// The host that this nexus is on.
    fn host(&self) -> HostIdentity;

    /// Returns whether the network proves that the other side of each connection is on this host.
    fn is_within_host(&self) -> bool {
        false
    }

    /// Accepts a connection; `WouldBlock` when none is ready.
    fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)>;

    /// Accepts a connection although descriptors have run out, answers with `bytes`, and closes it.
    /// `WouldBlock` when none is ready.
    fn refuse(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Starts a connection.
    fn connect(&mut self, to: SocketAddr) -> io::Result<Self::Stream>;

    /// Adds to the error of a failed connect what may be the cause.
    fn explain(&self, _to: SocketAddr, e: io::Error) -> io::Error {
        e
    }

    /// Reports readiness of a stream from now on. If it is ready already, that is reported too.
    fn register(&mut self, stream: &mut Self::Stream, n: u64) -> io::Result<()>;

    /// Stops reporting readiness of a stream that is about to be dropped.
    fn deregister(&mut self, stream: &mut Self::Stream);

    /// Resolves a name. `None`: the result for `dial` arrives as [`super::event::Event::Resolved`].
    fn resolve(&mut self, dial: u64, host: &str, port: u16) -> io::Result<Option<Vec<SocketAddr>>>;
}

/// A non-blocking reliable byte stream. Dropping it closes it.
pub(super) trait Stream: Read + Write + fmt::Debug {
    /// Returns whether the connection is established; `None`: not yet.
    fn connected(&mut self) -> io::Result<Option<()>>;

    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Sets the options of an established connection.
    fn prepare(&mut self) -> io::Result<()>;

    /// Makes the drop reset the connection, so that the kernel keeps no data for a peer that does
    /// not read.
    fn abort_on_close(&self);
}
