//! The order of the control thread's work when connections wait to be accepted.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use courser_proto::HostIdentity;

use crate::control::driver::{Driver, Parts};
use crate::control::network::{Network, Ready, Stream};
use crate::control::{Counters, Limits};
use crate::platform::Clock;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Did {
    Accept,
    Read,
}

/// The driver's calls of the network, in order.
type Log = Rc<RefCell<Vec<Did>>>;

/// A network with connections that wait, from one host each, and never send anything.
struct Waiting {
    left: u16,
    log: Log,
}

#[derive(Debug)]
struct Silent(Log);

impl Network for Waiting {
    type Stream = Silent;

    fn host(&self) -> HostIdentity {
        HostIdentity([1; 16])
    }

    fn accept(&mut self) -> io::Result<(Silent, SocketAddr)> {
        self.left = self.left.checked_sub(1).ok_or(ErrorKind::WouldBlock)?;
        self.log.borrow_mut().push(Did::Accept);
        let [high, low] = self.left.to_be_bytes();
        Ok((Silent(self.log.clone()), SocketAddr::from(([10, 0, high, low], 7))))
    }

    fn refuse(&mut self, _: &[u8]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn connect(&mut self, _: SocketAddr) -> io::Result<Silent> {
        Err(ErrorKind::Unsupported.into())
    }

    fn register(&mut self, _: &mut Silent, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&mut self, _: &mut Silent) {}

    fn resolve(&mut self, _: u64, _: &str, _: u16) -> io::Result<Option<Vec<SocketAddr>>> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl Read for Silent {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().push(Did::Read);
        Err(ErrorKind::WouldBlock.into())
    }
}

impl Write for Silent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Silent {
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

/// As after a restart: while some clients talk already, others wait.
#[test]
fn connections_that_wait_are_accepted_before_others_are_read() {
    let log = Log::default();
    let (_commands, queue) = mpsc::channel();
    let (limits, counters) = (Limits::default(), Arc::new(Counters::default()));
    let parts = Parts { queue, limits, counters, clock: Clock::System };
    let mut driver = Driver::new(Waiting { left: 1, log: log.clone() }, parts);
    driver.pass(&mut vec![Ready::Listener]);
    let first = *driver.conns.keys().next().expect("it is accepted");

    driver.net.left = 400;
    log.take();
    let talks = Ready::Conn { n: first, writable: false };
    driver.pass(&mut vec![talks, Ready::Listener]);
    let did = log.take();
    let accepted = did.iter().take_while(|did| **did == Did::Accept).count();
    assert_eq!(accepted, 256, "as many as one pass accepts");
    assert_eq!(did[accepted..], [Did::Read]);
    // The others follow without another event, and before the next reads.
    assert!(driver.due().is_some_and(|due| due <= driver.now()), "the thread does not sleep");
    driver.pass(&mut vec![talks]);
    let did = log.take();
    assert_eq!(did.iter().position(|did| *did == Did::Read), Some(400 - 256));
    assert_eq!(driver.conns.len(), 401);
}
