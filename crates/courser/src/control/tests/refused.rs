//! A peer that refuses the connection and closes it before the greeting is written.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use courser_proto::{ControlError, ControlRefusal, HostIdentity};

use crate::control::driver::{Driver, Parts};
use crate::control::event::Event;
use crate::control::mailbox::Mailbox;
use crate::control::network::{Network, Ready, Stream};
use crate::control::{Command, Counters, Limits, Mail};
use crate::error::DialError;
use crate::platform::{Clock, Platform};

/// Each connection is refused and closed as soon as this side writes to it.
struct Refusing;

/// The bytes that can be read.
#[derive(Default, Debug)]
struct Closed(io::Cursor<Vec<u8>>);

impl Network for Refusing {
    type Stream = Closed;

    fn host(&self) -> HostIdentity {
        HostIdentity([1; 16])
    }

    fn accept(&mut self) -> io::Result<(Closed, SocketAddr)> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn refuse(&mut self, _: &[u8]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn connect(&mut self, _: SocketAddr) -> io::Result<Closed> {
        Ok(Closed::default())
    }

    fn register(&mut self, _: &mut Closed, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&mut self, _: &mut Closed) {}

    fn resolve(&mut self, _: u64, _: &str, _: u16) -> io::Result<Option<Vec<SocketAddr>>> {
        Ok(Some(vec![SocketAddr::from(([10, 0, 0, 1], 7))]))
    }
}

impl Read for Closed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self.0.get_ref().is_empty() {
            true => Err(ErrorKind::WouldBlock.into()),
            false => self.0.read(to),
        }
    }
}

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        self.0 = io::Cursor::new(ControlRefusal::Exhausted.to_bytes().to_vec());
        Err(ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Closed {
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

#[test]
fn a_refusal_is_read_after_a_write_that_failed() {
    let (commands, queue) = mpsc::channel();
    let (limits, counters) = (Limits::default(), Arc::new(Counters::default()));
    let parts = Parts { queue, limits, counters, clock: Clock::System };
    let mut driver = Driver::new(Refusing, parts);
    let mailbox = Mailbox::new(&Platform::System, 1).unwrap();
    let register = Command::Register { index: 1, id: 9, mailbox: mailbox.clone(), accepts: false };
    commands.send(Event::Command(register)).unwrap();
    let dial = Command::Dial { index: 1, ticket: 5, host: "server".into(), port: 7 };
    commands.send(Event::Command(dial)).unwrap();
    driver.pass(&mut Vec::new());
    let n = *driver.conns.keys().next().expect("a connection");
    driver.pass(&mut vec![Ready::Conn { n, writable: true }]);

    let mut mail = Vec::new();
    mailbox.take(&mut mail);
    let Some(Mail::Dialed { ticket: 5, result: Err(error) }) = mail.pop() else {
        panic!("{mail:?}");
    };
    let refused = ControlError::Refused(ControlRefusal::Exhausted);
    assert!(matches!(&error, DialError::Handshake { cause, .. } if *cause == refused), "{error:?}");
}
