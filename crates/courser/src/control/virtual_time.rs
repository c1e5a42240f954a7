//! The control plane on a simulated machine: the same driver, called by the machine, over the
//! machine's streams.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use courser_proto::HostIdentity;

use super::driver::Driver;
use super::network::{self, Network, Ready};
use crate::machine::{ControlPlane, Listener, Machine, Stream, Turn};
use crate::platform::Clock;

/// The driver with the interface of a control loop.
pub(super) struct SimDriver {
    driver: Driver<Streams>,
    ready: Vec<Ready>,
    ended: bool,
}

impl SimDriver {
    pub(super) fn new(driver: Driver<Streams>) -> Self {
        SimDriver { driver, ready: Vec::new(), ended: false }
    }
}

impl ControlPlane for SimDriver {
    fn turn(&mut self) -> Turn {
        if !self.ended {
            self.driver.net.ready(&mut self.ready);
            self.driver.pass(&mut self.ready);
            if self.driver.stopping {
                self.driver.stop();
                self.ended = true;
            }
        }
        if self.ended {
            return Turn { due: None, ended: true };
        }
        let needs_poll = self.driver.net.needs_poll;
        let due = if needs_poll { Some(self.driver.now()) } else { self.driver.due() };
        Turn { due: due.map(Clock::virtual_ns), ended: false }
    }
}

impl std::fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDriver")
            .field("connections", &self.driver.conns.len())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// The streams of a simulated machine.
pub(super) struct Streams {
    machine: Weak<dyn Machine>,
    listener: Box<dyn Listener>,
    host: HostIdentity,
    /// A stream was registered since the last call of [`Listener::ready`] and may be ready.
    needs_poll: bool,
    tokens: Vec<u64>,
}

impl Streams {
    /// Listens on `bind` and returns the bound address.
    pub(super) fn listen(
        machine: &Arc<dyn Machine>,
        bind: SocketAddr,
    ) -> io::Result<(Streams, SocketAddr)> {
        let (listener, bound) = machine.listen(bind)?;
        let machine = Arc::downgrade(machine);
        // In a simulation addresses are true.
        let host = HostIdentity(match bound.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        });
        Ok((Streams { machine, listener, host, needs_poll: false, tokens: Vec::new() }, bound))
    }

    /// Appends the streams that have become ready, and always the listener, as an empty accept
    /// costs nothing.
    fn ready(&mut self, ready: &mut Vec<Ready>) {
        self.needs_poll = false;
        self.listener.ready(&mut self.tokens);
        ready.push(Ready::Listener);
        ready.extend(self.tokens.drain(..).map(|n| Ready::Conn { n, writable: true }));
    }
}

impl Network for Streams {
    type Stream = Box<dyn Stream>;

    fn host(&self) -> HostIdentity {
        self.host
    }

    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, SocketAddr)> {
        self.listener.accept()
    }

    /// Descriptors of simulated machines do not run out.
    fn refuse(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        self.listener.connect(to)
    }

    fn register(&mut self, stream: &mut Box<dyn Stream>, n: u64) -> io::Result<()> {
        stream.register(n);
        self.needs_poll = true;
        Ok(())
    }

    fn deregister(&mut self, _: &mut Box<dyn Stream>) {}

    fn resolve(
        &mut self,
        _dial: u64,
        host: &str,
        port: u16,
    ) -> io::Result<Option<Vec<SocketAddr>>> {
        let machine = self.machine.upgrade().ok_or(io::ErrorKind::NotFound)?;
        machine.resolve(host, port).map(Some)
    }
}

impl network::Stream for Box<dyn Stream> {
    fn connected(&mut self) -> io::Result<Option<()>> {
        self.as_mut().connected()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.as_ref().local_addr()
    }

    fn prepare(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn abort_on_close(&self) {
        self.as_ref().abort_on_close();
    }
}
