//! The order of the control thread's work when connections wait to be accepted.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;

use super::scripted::{Bytes, Script, driver};
use crate::control::network::Ready;

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

impl Script for Waiting {
    type Bytes = Silent;

    fn accept(&mut self) -> Option<(Silent, SocketAddr)> {
        self.left = self.left.checked_sub(1)?;
        self.log.borrow_mut().push(Did::Accept);
        let [high, low] = self.left.to_be_bytes();
        Some((Silent(self.log.clone()), SocketAddr::from(([10, 0, high, low], 7))))
    }
}

impl Bytes for Silent {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().push(Did::Read);
        Err(ErrorKind::WouldBlock.into())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
}

/// As after a restart: while some clients talk already, others wait.
#[test]
fn connections_that_wait_are_accepted_before_others_are_read() {
    let log = Log::default();
    let (mut driver, _commands) = driver(Waiting { left: 1, log: log.clone() });
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
