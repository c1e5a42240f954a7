//! A network and its streams without sockets, for the order of the driver's calls.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use courser_proto::HostIdentity;

use crate::control::driver::{Driver, Parts};
use crate::control::event::Event;
use crate::control::network::{Network, Stream};
use crate::control::{Counters, Limits};
use crate::platform::Clock;

/// The bytes of a stream.
pub(in crate::control) trait Bytes: fmt::Debug {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize>;
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

/// An established connection.
#[derive(Debug)]
pub(in crate::control) struct Scripted<B>(pub(super) B);

impl<B: Bytes> Read for Scripted<B> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
    }
}

impl<B: Bytes> Write for Scripted<B> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<B: Bytes> Stream for Scripted<B> {
    fn connected(&mut self) -> io::Result<Option<()>> {
        Ok(Some(()))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([10, 9, 9, 9], 31_850)))
    }

    fn prepare(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn abort_on_close(&self) {}
}

/// A network whose names all stand for the same addresses.
pub(in crate::control) trait Script {
    type Bytes: Bytes;

    /// The next connection that waits.
    fn accept(&mut self) -> Option<(Self::Bytes, SocketAddr)> {
        None
    }

    /// A connection that this side makes.
    fn connect(&mut self, _to: SocketAddr) -> io::Result<Self::Bytes> {
        Err(ErrorKind::Unsupported.into())
    }

    /// The addresses of a name; `None`: the resolver does not answer.
    fn resolve(&mut self, port: u16) -> Option<Vec<SocketAddr>> {
        Some(vec![SocketAddr::from(([10, 0, 0, 1], port))])
    }
}

impl<S: Script> Network for S {
    type Stream = Scripted<S::Bytes>;

    fn host(&self) -> HostIdentity {
        HostIdentity([1; 16])
    }

    fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)> {
        let (bytes, from) = Script::accept(self).ok_or(ErrorKind::WouldBlock)?;
        Ok((Scripted(bytes), from))
    }

    fn refuse(&mut self, _: &[u8]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<Self::Stream> {
        Script::connect(self, to).map(Scripted)
    }

    fn register(&mut self, _: &mut Self::Stream, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&mut self, _: &mut Self::Stream) {}

    fn resolve(&mut self, _: u64, _: &str, port: u16) -> io::Result<Option<Vec<SocketAddr>>> {
        Ok(Script::resolve(self, port))
    }
}

/// A driver of the network, and the queue of its commands.
pub(super) fn driver<S: Script>(network: S) -> (Driver<S>, mpsc::Sender<Event>) {
    driver_at(network, Clock::System)
}

/// [`driver`] with another clock.
pub(super) fn driver_at<S: Script>(network: S, clock: Clock) -> (Driver<S>, mpsc::Sender<Event>) {
    let (commands, queue) = mpsc::channel();
    let (limits, counters) = (Limits::default(), Arc::new(Counters::default()));
    let parts = Parts { queue, limits, counters, clock };
    (Driver::new(network, parts), commands)
}
